"""What an executor's start leaves out, in a process of its own."""

import subprocess
import sys

import pytest
import torch

SCRIPT = """
import gpu_worker.postponed, gc, sys, torch
print(gc.isenabled(), "torch._meta_registrations" in sys.modules)
print(torch.empty(2, 3, device="meta").sum(0).shape)
import torch._meta_registrations as rules
print(rules.__file__.rpartition("/")[2], hasattr(rules, "meta_index_Tensor"))
"""


@pytest.mark.skipif(not torch.__version__.startswith("2.13."), reason="this torch loads all")
def test_shape_rules_come_only_to_who_asks() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout.splitlines() == [
        "False False",
        "torch.Size([3])",
        "_meta_registrations.py True",
    ]
