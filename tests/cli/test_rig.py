"""A private pipeline leaves nothing behind, however its owner ends."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
OWNER = """
from stages.cli.rig import private_pipeline
with private_pipeline() as rig:
    print(rig.folder, flush=True)
    input()
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_the_pipeline_is_stopped_and_its_folder_removed(number: signal.Signals) -> None:
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        text=True, cwd=ROOT,
    )  # fmt: skip
    assert owner.stdout is not None
    folder = Path(owner.stdout.readline().strip())
    assert folder.name.startswith("headrace-")
    owner.send_signal(number)
    assert owner.wait(90) != 0
    owner.stdout.close()
    assert owner.stdin is not None
    owner.stdin.close()
    assert not folder.exists()
    deadline = time.monotonic() + 30
    while using := running_in(folder):
        assert time.monotonic() < deadline, using
        time.sleep(0.2)


def running_in(folder: Path) -> list[str]:
    """Command lines of processes that name the folder."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = entry.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:  # it has just ended
            continue
        if str(folder) in line:
            found.append(line)
    return found
