"""Control's side of the watchdog: whoever finds its watchdog dead starts another."""

import asyncio
import logging
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from contracts.status import WatchdogStatus
from stages.control.process import Identity
from stages.control.state import StateFolder

LOOK_S: Final = 0.5
_START_S: Final = 5.0

log = logging.getLogger("headrace.control")


def watchdog_command(module: str, topology: Path, folder: Path) -> list[str]:
    """How a watchdog is started; `module` is the control that it starts."""
    command = [sys.executable, "-P", "-m", "stages.control.watchdog", "--control", module]
    return [*command, "--topology", str(topology), "--state", str(folder)]


class Guard:
    """Sees to it that this control has a watchdog."""

    def __init__(self, folder: StateFolder, command: Sequence[str], started: int = 0) -> None:
        self._folder = folder
        self._command = [*command, "--adopt"]
        self._children: list[subprocess.Popen[bytes]] = []
        self._off = False
        self.started = started

    def holder(self) -> Identity | None:
        """The watchdog that is on."""
        return self._folder.holder("watchdog")

    def stop(self) -> None:
        """The pipeline ends: no more watchdogs."""
        self._off = True

    async def look(self) -> bool:
        """Start a watchdog if there is none; whether one was started."""
        self._children = [one for one in self._children if one.poll() is None]
        if self._off or self.holder() is not None:
            return False
        log.warning("the watchdog has ended; starting another")
        child = subprocess.Popen(  # noqa: ASYNC220 (a fork, a few ms)
            self._command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._children.append(child)
        self.started += 1
        deadline = time.monotonic() + _START_S
        while self.holder() is None and child.poll() is None:
            if time.monotonic() > deadline:
                break
            await asyncio.sleep(0.02)
        return True

    def status(self) -> WatchdogStatus:
        """For `headrace status`."""
        on = self.holder()
        return WatchdogStatus(pid=on.pid if on else None, restarts=self.started)
