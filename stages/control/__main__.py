"""`python -m stages.control --topology FILE --state DIR`: started by `headrace up`."""

import argparse
import asyncio
import logging
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

import uvloop

from contracts.topology import Topology
from stages.control.fleet import StartError
from stages.control.leftovers import CannotEndError, end_leftovers
from stages.control.natsd import NatsServerError
from stages.control.order import ProcessSpec, plan
from stages.control.progress import Progress
from stages.control.service import Control
from stages.control.state import StateFolder
from stages.runtime.topology_file import load_topology

Planner = Callable[[Topology], list[ProcessSpec]]

FAILED: Final = 1
TAKEN: Final = 2


def main() -> int:
    """Run one pipeline until SIGTERM or SIGINT; 0 after a clean end."""
    return run(plan)


def run(planner: Planner) -> int:
    """`main` with another plan of processes (tests have one of small stages)."""
    parser = argparse.ArgumentParser(
        prog="python -m stages.control", description="Started by `headrace up`."
    )
    parser.add_argument("--topology", type=Path, required=True, help="the file to run")
    parser.add_argument("--state", type=Path, required=True, help="folder for state and logs")
    options = parser.parse_args()
    logging.basicConfig(
        stream=sys.stderr,
        level=logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s %(message)s",
    )
    file, folder = options.topology.absolute(), StateFolder(options.state)
    return uvloop.run(control(file, folder, planner))


async def control(file: Path, folder: StateFolder, planner: Planner) -> int:
    """Check, take the folder, start, wait, stop."""
    progress = Progress()
    report = load_topology(file)
    if report.topology is None:
        progress.tell("failed", reason="\n".join(report.lines()))
        return FAILED
    folder.make()
    lock = folder.lock()
    if lock is None:
        progress.tell("failed", reason=f"a pipeline already runs in {folder.root}")
        return TAKEN
    with lock:
        try:
            await end_leftovers(folder)
            pipeline = Control(report.topology, file, folder, planner(report.topology), progress)
        except (NatsServerError, CannotEndError) as error:
            progress.tell("failed", reason=str(error))
            return FAILED
        return await supervise(pipeline, progress)


async def supervise(pipeline: Control, progress: Progress) -> int:
    """Start it, keep it until a signal comes, stop it; a second signal stops at once."""
    asked = asyncio.Event()

    def ask() -> None:
        if asked.is_set():
            pipeline.kill()
        asked.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ask)
    starting = loop.create_task(pipeline.start())
    stopping = loop.create_task(asked.wait())
    code = 0
    await asyncio.wait({starting, stopping}, return_when="FIRST_COMPLETED")
    if starting.done() and starting.exception() is not None:
        code = FAILED
        progress.tell("failed", reason=_reason(starting.exception()))
    elif starting.done():
        await stopping
    else:
        starting.cancel()
        await asyncio.wait({starting})
    stopping.cancel()
    await pipeline.stop()
    return code


def _reason(error: BaseException | None) -> str:
    if isinstance(error, StartError):
        return str(error)
    logging.getLogger("headrace.control").error("start failed", exc_info=error)
    return f"{type(error).__name__}: {error}"


if __name__ == "__main__":
    sys.exit(main())
