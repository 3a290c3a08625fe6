"""Control over dummy stages, as a process: `python -m tests.support.dummy_control FILE STATE`."""

import asyncio
import sys
from dataclasses import replace
from pathlib import Path

from contracts.topology import Topology
from stages.control.__main__ import supervise
from stages.control.order import ProcessSpec, plan
from stages.control.progress import Progress
from stages.control.service import Control
from stages.control.state import StateFolder
from stages.runtime.topology_file import load_topology


def dummies(topology: Topology) -> list[ProcessSpec]:
    """The plan of a topology with every module replaced."""
    return [replace(spec, module="tests.support.dummy_stage") for spec in plan(topology)]


async def run(file: Path, folder: StateFolder) -> int:
    """As `stages.control` does."""
    topology = load_topology(file).topology
    assert topology is not None
    folder.make()
    lock = folder.lock()
    assert lock is not None
    with lock:
        progress = Progress()
        return await supervise(
            Control(topology, file, folder, dummies(topology), progress), progress
        )


if __name__ == "__main__":
    sys.exit(asyncio.run(run(Path(sys.argv[1]), StateFolder(Path(sys.argv[2])))))
