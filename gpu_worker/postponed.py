"""Importing this imports torch without what only costs time before an executor is ready.

Garbage collection, which finds nothing while torch and a model load: whoever has loaded calls
`gc.enable()`. And shape rules for tensors without data, a third of torch's import: compilers ask for
them, this engine does not. Whoever imports them later gets them. `gpu_worker.__main__` imports this
first. Figures: docs/performance.md.
"""

import gc
import sys
from importlib.metadata import version
from types import ModuleType
from typing import Final

RULES: Final = "torch._meta_registrations"
TRIED_WITH: Final = ("2.13.",)  # torch versions that load without them; others load all

gc.disable()
_postpone = "torch" not in sys.modules and version("torch").startswith(TRIED_WITH)
if _postpone:
    sys.modules[RULES] = ModuleType(RULES)

import torch  # noqa: E402 - after what it is to find

if _postpone:
    del sys.modules[RULES]
    vars(torch).pop(RULES.rpartition(".")[2], None)
