"""The watchdog as `headrace up` starts it, and the ways to end what it has started."""

import os
import signal
import subprocess
import threading
from pathlib import Path

from stages.control.ending import end_pipeline
from stages.control.guard import watchdog_command
from stages.control.leftovers import CannotEndError
from stages.control.logs import fresh_log, tail
from stages.control.state import StateFolder


class Starting:
    """A pipeline that was begun here; it lives on when this process is killed."""

    def __init__(self, folder: StateFolder, topology: Path, control: str) -> None:
        self._folder = folder
        self._command = watchdog_command(control, topology, folder.root)
        self._watchdog: subprocess.Popen[str] | None = None
        self._stop: threading.Thread | None = None
        self._early = False
        self.problem: str | None = None

    def begin(self) -> bool:
        """Start the watchdog in a session of its own; whether it is on."""
        log = self._folder.log("control")
        fresh_log(log)
        with os.fdopen(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "w") as output:
            self._watchdog = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=output,
                text=True,
                start_new_session=True,
            )
        assert self._watchdog.stdout is not None
        with self._watchdog.stdout as said:
            watching = said.readline().strip() == "watching"
        if self._early:  # a signal came before there was anything to stop
            self._end()
        return watching

    def why(self) -> str:
        """The last words of a watchdog or control that left without one for us."""
        lines = "\n".join(tail(self._folder.log("control")))
        return f"control could not be started\n{lines}".rstrip()

    def over(self) -> bool:
        """Whether neither watchdog nor control is there any more."""
        if self._watchdog is not None:
            self._watchdog.poll()  # takes its exit code: a zombie is nobody
        return self._folder.looked_after() is None

    def leave(self) -> None:
        """It lives on without us."""
        if self._watchdog is not None and self._watchdog.returncode is None:
            self._watchdog.returncode = 0  # Popen need not warn about it

    def on_signal(self, number: int, _frame: object) -> None:
        """The first one stops everything in order; a second Ctrl-C does it at once."""
        control = self._folder.holder("control")
        if self._watchdog is None:
            self._early = True
        elif self._stop is None:
            self._end()
        elif number == signal.SIGINT and control is not None:
            control.send(signal.SIGINT)

    def _end(self) -> None:
        self._stop = threading.Thread(target=self._run_end, name="stopping")
        self._stop.start()

    def _run_end(self) -> None:
        try:
            end_pipeline(self._folder)
        except CannotEndError as error:
            self.problem = str(error)

    def settled(self) -> None:
        """Wait for a stop that was begun."""
        if self._stop is not None:
            self._stop.join()
