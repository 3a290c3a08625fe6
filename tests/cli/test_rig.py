"""A private pipeline leaves nothing behind, however its owner ends."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.waiting import until

ROOT = Path(__file__).parents[2]
OWNER = """
from stages.cli.rig import private_pipeline
with private_pipeline() as rig:
    print(rig.folder, flush=True)
    input()
"""


STARTING = """
from stages.cli.rig import stopped_pipeline
with stopped_pipeline() as rig:
    print(rig.folder, flush=True)
    rig.up()
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_the_pipeline_is_stopped_and_its_folder_removed(number: signal.Signals) -> None:
    owner, folder = started(OWNER)
    owner.send_signal(number)
    nothing_is_left(owner, folder)


@pytest.mark.slow
@pytest.mark.parametrize("log", ["control", "nats-server"])  # who has just been started
def test_an_owner_that_ends_while_its_pipeline_starts_leaves_nothing(log: str) -> None:
    owner, folder = started(STARTING)
    until((folder / ".headrace" / "logs" / f"{log}.log").exists, 60)
    owner.terminate()
    time.sleep(0.2)
    owner.terminate()  # whoever is in a hurry says it twice
    nothing_is_left(owner, folder)


def started(program: str) -> tuple["subprocess.Popen[str]", Path]:
    """The owner of a pipeline, and the pipeline's folder."""
    owner = subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        text=True, cwd=ROOT,
    )  # fmt: skip
    assert owner.stdout is not None
    folder = Path(owner.stdout.readline().strip())
    assert folder.name.startswith("headrace-")
    return owner, folder


def nothing_is_left(owner: "subprocess.Popen[str]", folder: Path) -> None:
    """The owner ends with an error code, its processes and files are gone."""
    assert owner.wait(90) != 0
    for pipe in (owner.stdin, owner.stdout):
        assert pipe is not None
        pipe.close()
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
