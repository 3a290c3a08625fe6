"""A state folder after a killed control, and its lock."""

import asyncio
import subprocess
import sys
from pathlib import Path

from stages.control.leftovers import end_leftovers
from stages.control.state import StateFolder
from tests.support.topologies import write_topology
from tests.support.waiting import until


def events(folder: StateFolder) -> str:
    """What control has told so far."""
    return folder.progress.read_text() if folder.progress.exists() else ""


def test_what_a_killed_control_left_is_found_and_ended(tmp_path: Path) -> None:
    file, folder = write_topology(tmp_path), StateFolder(tmp_path / "state")
    command = [sys.executable, "-m", "tests.support.dummy_control"]
    command += ["--topology", str(file), "--state", str(folder.root)]
    with subprocess.Popen(command) as process:
        try:
            until(lambda: '"up"' in events(folder))
        finally:
            process.kill()
    state = folder.read()
    assert state is not None
    assert not state.control.alive
    assert folder.running() is None
    left = state.leftovers()
    assert {one.stage for one in left} >= {"nats-server", "ingress", "gpu_worker"}
    assert asyncio.run(end_leftovers(folder)) == len(left)
    assert state.leftovers() == []


def test_one_state_folder_has_one_control(tmp_path: Path) -> None:
    folder = StateFolder(tmp_path / "state")
    folder.make()
    first = folder.lock()
    assert first is not None
    assert folder.lock() is None
    first.close()
    again = folder.lock()
    assert again is not None
    again.close()
