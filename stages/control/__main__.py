"""`python -m stages.control --topology FILE --state DIR`: started by the watchdog of `headrace up`."""

import argparse
import asyncio
import logging
import os
import signal
import sys
import time
from pathlib import Path
from typing import IO, Final

import uvloop

from contracts.lifecycle import Generation
from stages.control.adoption import Found, find
from stages.control.fleet import StartError
from stages.control.guard import Guard, watchdog_command
from stages.control.leftovers import CannotEndError, end_leftovers
from stages.control.natsd import NatsServerError
from stages.control.order import plan
from stages.control.progress import Progress
from stages.control.service import Control, Planner
from stages.control.state import StateFolder
from stages.control.watchdog import START_FAILED, TAKEN
from stages.runtime.clock import now_ms
from stages.runtime.loops import forever
from stages.runtime.topology_file import load_topology

FAILED: Final = 1
_LOCK_S: Final = 3.0  # a `headrace down` that cleans up holds the folder for a moment
_PULSE_S: Final = 1.0

log = logging.getLogger("headrace.control")


def main() -> int:
    """Run one pipeline until SIGTERM or SIGINT; 0 after a clean end."""
    return run(plan, "stages.control")


def run(planner: Planner, module: str) -> int:
    """`main` with another plan of processes (tests have one of small stages)."""
    parser = argparse.ArgumentParser(
        prog=f"python -m {module}", description="Started by `headrace up`."
    )
    parser.add_argument("--topology", type=Path, required=True, help="the file to run")
    parser.add_argument("--state", type=Path, required=True, help="folder for state and logs")
    parser.add_argument("--watched", action="store_true", help="a watchdog has started it")
    parser.add_argument("--resume", action="store_true", help="go on with what ran before")
    options = parser.parse_args()
    logging.basicConfig(
        stream=sys.stderr,
        level=logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s %(message)s",
    )
    file, folder = options.topology.absolute(), StateFolder(options.state)
    watchdog = watchdog_command(module, file, folder.root) if options.watched else None
    return uvloop.run(Entry(file, folder, planner, options.resume, watchdog).run())


class Entry:
    """From the command line to a running pipeline, and to its end."""

    def __init__(
        self,
        file: Path,
        folder: StateFolder,
        planner: Planner,
        resume: bool,
        watchdog: list[str] | None,
    ) -> None:
        self._file = file
        self._folder = folder
        self._planner = planner
        self._resume = resume
        self._watchdog = watchdog
        self._progress = Progress(folder.progress if folder.root.exists() else None)
        self._asked = asyncio.Event()
        self._pipeline: Control | None = None

    async def run(self) -> int:
        """Take the folder, check, take over or end what is left, run."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._ask, number)
        self._folder.make()
        self._progress = Progress(self._folder.progress)
        lock = await self._lock()
        if lock is None:
            self._progress.tell("failed", reason=f"a pipeline already runs in {self._folder.root}")
            return TAKEN
        with lock:
            pulse = loop.create_task(forever("the pulse", self._beat, _PULSE_S))
            try:
                return await self._run()
            except Exception:
                log.exception("control cannot go on; its watchdog starts another")
                logging.shutdown()
                os._exit(FAILED)  # the next one takes over what runs: no clean-up of children
            finally:
                pulse.cancel()

    async def _run(self) -> int:
        try:
            found = find(self._folder)
            begin = self._begin(found)
            if begin is None:
                return START_FAILED
            taken: Found | None = found if begin.generation or self._resume else None
            if taken is None:
                await self._end(found)
            guard = self._guard(taken)
            self._pipeline = Control(
                begin, self._file, self._folder, self._progress, self._planner, taken, guard
            )
        except (NatsServerError, CannotEndError) as error:
            self._progress.tell("failed", reason=str(error))
            return START_FAILED
        return await self._supervise(self._pipeline)

    def _begin(self, found: Found) -> Generation | None:
        """The generation to start with: the one that ran, if it is to go on; else the file's."""
        kept = self._folder.read_generation()
        if kept is not None and self._resume:
            return kept
        report = load_topology(self._file)
        if report.topology is None or report.text is None:
            self._progress.tell("failed", reason="\n".join(report.lines()))
            return None
        if kept is not None and found.living and kept.text == report.text:
            return kept
        return Generation(
            generation=0,
            topology=report.topology,
            text=report.text,
            reason="start",
            applied_ms=now_ms(),
        )

    async def _end(self, found: Found) -> None:
        """What is left belongs to another topology."""
        if found.living:
            self._progress.tell("left_over", instances=[one.instance for one in found.living])
        await end_leftovers(self._folder)
        self._folder.clear()

    def _guard(self, found: Found | None) -> Guard | None:
        if self._watchdog is None:
            return None
        started = found.state.watchdogs if found is not None and found.state is not None else 0
        return Guard(self._folder, self._watchdog, started)

    async def _supervise(self, pipeline: Control) -> int:
        """Start it, keep it until a signal comes, stop it."""
        loop = asyncio.get_running_loop()
        starting = loop.create_task(pipeline.start())
        stopping = loop.create_task(self._asked.wait())
        code = 0
        await asyncio.wait({starting, stopping}, return_when="FIRST_COMPLETED")
        if starting.done() and starting.exception() is not None:
            if pipeline.was_up and not self._asked.is_set():
                starting.result()
            code = START_FAILED
            self._progress.tell("failed", reason=_reason(starting.exception()))
        elif starting.done():
            await stopping
        else:
            starting.cancel()
            await asyncio.wait({starting})
        stopping.cancel()
        await pipeline.stop()
        return code

    def _ask(self, number: signal.Signals) -> None:
        """Stop in order. A second Ctrl-C, never a second `headrace down`, does it at once."""
        if self._asked.is_set() and number == signal.SIGINT and self._pipeline is not None:
            self._pipeline.kill()
        self._asked.set()

    async def _lock(self) -> IO[str] | None:
        deadline = time.monotonic() + _LOCK_S
        while (lock := self._folder.lock()) is None and time.monotonic() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        return lock

    async def _beat(self) -> None:
        self._folder.pulse.touch(0o600)


def _reason(error: BaseException | None) -> str:
    if isinstance(error, StartError):
        return str(error)
    log.error("start failed", exc_info=error)
    return f"{type(error).__name__}: {error}"


if __name__ == "__main__":
    sys.exit(main())
