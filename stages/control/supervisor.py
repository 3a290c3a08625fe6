"""Keeps one process running: start, readiness, restart with backoff, end."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, Protocol

from contracts.status import Phase
from stages.control.backoff import Backoff
from stages.control.logs import fresh_log, tail
from stages.control.order import ProcessSpec
from stages.control.process import Child, Identity, Running, end
from stages.control.state import ProcessRecord
from stages.runtime.clock import now_ms
from stages.runtime.limits import READY_S

_GATE_S: Final = 3.0  # a slow start holds its place at the gate no longer than this
_SETTLE_S: Final = 2.5  # booking the last of an executor takes up to 2.1 s
_FALTERING: Final = 3  # ends before it was ever ready: then starting the pipeline has failed

log = logging.getLogger("headrace.control")


@dataclass(frozen=True)
class Life:
    """One incarnation: what to start and how to see that it serves."""

    incarnation: str
    command: list[str]
    env: Mapping[str, str]
    spawned_ms: float
    ready: Callable[[], Awaitable[None]]


class Launcher(Protocol):
    """Makes the next incarnation of one process."""

    def next_life(self) -> Life:
        """Draw a new incarnation and write what the process is told."""

    async def ended(self, life: Life, code: int | None) -> None:
        """It ended, wanted or not; `code` is None when it was adopted and ended by itself."""


@dataclass(frozen=True)
class Change:
    """Something to tell the person who started the pipeline."""

    event: Literal["ready", "adopted", "exited", "stopped"]
    instance: str
    ms: float = 0.0
    reason: str = ""


@dataclass
class Supervised:
    """One process and its history."""

    stage: str
    instance: str
    launcher: Launcher
    log_file: Path
    gate: asyncio.Semaphore
    on_change: Callable[[Change], None]
    on_pid: Callable[[], None]
    pool: str | None = None
    spec: ProcessSpec | None = None
    generation: int = 0
    ready_limit_s: float = READY_S
    backoff: Backoff = field(default_factory=lambda: Backoff(time.monotonic))
    phase: Phase = "waiting"
    life: Life | None = None
    child: Running | None = None
    unsettled: Identity | None = None  # spawned, and what its end leaves is not settled yet
    restarts: int = -1
    last_error: str | None = None
    ever_ready: asyncio.Event = field(default_factory=asyncio.Event)
    faltered: asyncio.Event = field(default_factory=asyncio.Event)
    _stopping: asyncio.Event = field(default_factory=asyncio.Event)
    _task: asyncio.Task[None] | None = None
    _late: bool = False
    _verdict: str | None = None
    _taken: tuple[Running, float] | None = None

    def adopt(self, child: Running, life: Life, ready_s: float) -> None:
        """Before `start`: its present incarnation runs already and is ready within `ready_s`."""
        self.child, self.life, self.unsettled = child, life, child.identity
        self.phase = "starting"
        self._taken = child, ready_s

    def record(self) -> ProcessRecord | None:
        """What a later control must know of it; None while nothing of it is there."""
        if self.unsettled is None or self.life is None:
            return None
        return ProcessRecord(
            stage=self.stage,
            instance=self.instance,
            identity=self.unsettled,
            incarnation=self.life.incarnation,
            pool=self.pool,
            spec=self.spec,
            spawned_ms=self.life.spawned_ms,
            generation=self.generation,
            restarts=max(0, self.restarts),
            last_error=self.last_error,
        )

    def start(self) -> None:
        """Begin to keep it running, in the background."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                await self._live_once()
            except OSError as error:  # no such program, no memory, no more files
                self.last_error = f"cannot be started: {error}"
            except Exception as error:  # this loop is all that starts the process again
                log.exception("%s: its life was cut short", self.instance)
                self.last_error = f"cannot be kept running: {error!r}"
            if self._stopping.is_set():
                break
            delay_s = self.backoff.ended()
            self.phase = "crash_loop" if self.backoff.looping else "backoff"
            if not self.ever_ready.is_set() and (self._late or self.backoff.failures >= _FALTERING):
                self.faltered.set()
            log.warning("%s: %s; again in %.1f s", self.instance, self.last_error, delay_s)
            self._tell(Change("exited", self.instance, delay_s * 1000, self.last_error or ""))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), delay_s)
        self.phase = "stopped"

    def _tell(self, change: Change) -> None:
        try:
            self.on_change(change)
        except Exception:
            log.exception("%s: nobody could be told that it %s", self.instance, change.event)

    async def _live_once(self) -> None:
        """One incarnation from spawn (or adoption) to exit; whatever fails, no child is left."""
        taken, self._taken = self._taken, None
        child: Running | None = None
        life: Life | None = None
        limit_s = self.ready_limit_s
        try:
            if taken is not None:
                (child, limit_s), life = taken, self.life
                assert life is not None
                exiting = asyncio.ensure_future(child.wait())
                readying = asyncio.ensure_future(life.ready())
            else:
                async with self.gate:
                    if self._stopping.is_set():
                        return
                    life = self._next_life()
                    child = await Child.start(life.command, life.env, self.log_file)
                    self.child, self.unsettled = child, child.identity
                    exiting = asyncio.ensure_future(child.wait())
                    readying = asyncio.ensure_future(life.ready())
                    self.on_pid()  # when it cannot be written down, it must not live
                    if self._stopping.is_set():  # while it was spawned: `stop` saw no child to end
                        child.kill()
                    await _first(exiting, readying, _GATE_S)
            word: Literal["adopted", "ready"] = "ready" if taken is None else "adopted"
            await self._watch(child, life, exiting, readying, limit_s, word)
        finally:
            if child is not None and life is not None:
                readying.cancel()
                await self._bury(child, life)

    def _next_life(self) -> Life:
        self.phase = "starting"
        self._late = False
        self._verdict = None
        self.restarts += 1
        fresh_log(self.log_file)
        self.life = self.launcher.next_life()
        return self.life

    async def _bury(self, child: Running, life: Life) -> None:
        """See that it has ended and settle what its end left; only then it is forgotten."""
        child.kill()  # it has ended, unless something failed
        code = await child.wait()
        self.child = None
        if not self._stopping.is_set():
            self.last_error = self._why(code)
        try:
            await self.launcher.ended(life, code)
        finally:
            self.unsettled = None
            try:
                self.on_pid()
            except Exception:
                log.exception("%s: its end could not be written down", self.instance)

    async def _watch(
        self,
        child: Running,
        life: Life,
        exiting: asyncio.Future[int | None],
        readying: asyncio.Future[None],
        limit_s: float,
        word: Literal["ready", "adopted"],
    ) -> None:
        await _first(exiting, readying, limit_s)
        if exiting.done():
            return
        if not readying.done():
            self._late = True
            self._verdict = f"not ready within {limit_s:.0f} s"
            await end(child, 1.0)
            return
        readying.result()
        self.phase = "ready"
        self.backoff.ready()
        self.ever_ready.set()
        self._tell(Change(word, self.instance, now_ms() - life.spawned_ms))
        await asyncio.wait({exiting})

    def _why(self, code: int | None) -> str:
        if code is None:
            how = "ended; how is not known, an earlier control had started it"
        else:
            how = f"killed by signal {-code}" if code < 0 else f"exit code {code}"
        if self._verdict is not None:
            how = self._verdict
        lines = tail(self.log_file)
        return f"{how}; last lines of {self.log_file}:\n" + "\n".join(lines) if lines else how

    async def stop(self, grace_s: float) -> None:
        """End it within `grace_s`, settle what its end left, and start it no more."""
        self._stopping.set()
        if self.child is not None:
            self.phase = "draining"
            await end(self.child, grace_s)
        if self._task is not None:
            await asyncio.wait({self._task}, timeout=_SETTLE_S)
        if self.child is not None:  # its spawn took that long
            self.child.kill()
        self.phase = "stopped"
        self._tell(Change("stopped", self.instance))

    def hold(self) -> None:
        """A stop of the pipeline has begun: what does not run now is not started any more."""
        if self.child is None:
            self._stopping.set()

    def condemn(self, why: str) -> None:
        """It lives but does not work: kill it, so that it is started again; `why` is shown."""
        if self.child is not None and not self._stopping.is_set():
            self._verdict = why
            self.child.kill()

    def kill(self) -> None:
        """End it without waiting."""
        self._stopping.set()
        if self.child is not None:
            self.child.kill()


async def _first(
    exiting: asyncio.Future[int | None], readying: asyncio.Future[None], limit_s: float
) -> None:
    """Wait until it has ended or serves, at most `limit_s`."""
    both: set[asyncio.Future[Any]] = {exiting, readying}
    await asyncio.wait(both, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
