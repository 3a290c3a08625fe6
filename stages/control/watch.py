"""`up --watch`: the file is followed, each save is applied."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

import watchfiles

from contracts.errors import ErrorCode, HeadraceError
from contracts.lifecycle import ApplyCall
from stages.runtime.topology_file import load_topology

LOOK_MS: Final = 2000  # a look without a word from the kernel: the file may be a link to elsewhere
_AGAIN_S: Final = 1.0

Apply = Callable[[ApplyCall], Awaitable[str]]
Tell = Callable[[str, str], None]

log = logging.getLogger("headrace.watch")


class Watch:
    """Applies what is saved; `problem` says why the last save is not what serves."""

    def __init__(self, file: Path, served: str, apply: Apply, tell: Tell) -> None:
        self._file = file
        self._seen: str | None = served
        self._apply = apply
        self._tell = tell
        self.problem: str | None = None

    async def run(self) -> None:
        """For ever (cancel to end). A save while nobody watched counts, too."""
        stop = asyncio.Event()
        try:
            await self.look()
            async for _ in watchfiles.awatch(
                self._file.parent,
                watch_filter=lambda _, path: Path(path).name == self._file.name,
                debounce=400,
                rust_timeout=LOOK_MS,
                yield_on_timeout=True,
                recursive=False,
                stop_event=stop,
            ):
                await self.look()
        finally:
            stop.set()  # else its thread would outlive us

    async def look(self) -> None:
        """Apply the file if it is another than last time."""
        report = await asyncio.to_thread(load_topology, self._file)
        seen = "\n".join(report.lines()) if report.text is None else report.text
        if seen == self._seen:
            return
        if report.text is None or report.topology is None:
            self._seen = seen
            self._fail("\n".join(one.text(report.file) for one in report.errors))
            return
        call = ApplyCall(text=report.text, file=str(self._file), reason="watch")
        try:
            done = await self._apply(call)
        except HeadraceError as error:
            if error.info.code in (ErrorCode.CONFLICT, ErrorCode.NO_CAPACITY):
                self.problem = f"{self._file.name} is not applied yet: {error}"
                log.warning(self.problem)
                self._seen = (
                    None  # whatever it says at the next look, and whoever's text serves then
                )
                await asyncio.sleep(_AGAIN_S)
                return
            self._seen = seen
            self._fail(str(error))
            return
        self._seen = seen
        self.problem = None
        log.info("%s: %s", self._file.name, done)
        self._tell("applied", done)

    def _fail(self, reason: str) -> None:
        self.problem = f"the last save of {self._file.name} is refused: {reason}"
        log.warning(self.problem)
        self._tell("refused", reason)
