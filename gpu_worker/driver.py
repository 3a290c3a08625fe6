"""A thread that owns an engine, so that torch never blocks anybody's event loop.

Commands go in through a thread-safe inbox; what each step produced comes out by a callback, called
from this thread: hand the outputs over and return at once (`loop.call_soon_threadsafe`).
"""

import atexit
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from gpu_worker.engine import Engine
from gpu_worker.output import StepOutput
from gpu_worker.request import Request, RequestRefusedError
from stages.runtime.clock import now_ms

# After a step with a first token the cores are left to those who carry it to the client: the next
# step's threads would hold each of them up by a scheduler tick. Every running request pays 2 ms for
# each such step, that is, for each newcomer.
FIRST_TOKEN_PAUSE_S = 0.002
EXIT_S = (
    30.0  # how long a process that ends waits for the running step; the supervisor kills before
)


@dataclass(frozen=True)
class Add:
    """Start a request."""

    request: Request


@dataclass(frozen=True)
class Cancel:
    """End a request at the next step boundary."""

    request_id: str


@dataclass(frozen=True)
class Stop:
    """End the thread after the step that runs; what has not finished is cancelled and reported."""


Command = Add | Cancel | Stop


@dataclass(frozen=True)
class Intervals:
    """Microseconds since `start()` by the monotonic clock; the four add up to the whole exactly.

    startup: making the engine. busy: steps that computed. host: commands, callbacks, bookkeeping.
    idle: waiting with nothing to do.
    """

    startup_us: int = 0
    busy_us: int = 0
    host_us: int = 0
    idle_us: int = 0

    @property
    def total_us(self) -> int:
        """Time from start to the last boundary."""
        return self.startup_us + self.busy_us + self.host_us + self.idle_us

    def plus(self, other: "Intervals") -> "Intervals":
        """Both together."""
        return Intervals(
            self.startup_us + other.startup_us,
            self.busy_us + other.busy_us,
            self.host_us + other.host_us,
            self.idle_us + other.idle_us,
        )


@dataclass(frozen=True)
class Clock:
    """Time booked up to `mark_us`; replaced as a whole, so other threads read it consistently."""

    intervals: Intervals
    mark_us: int
    waiting: bool


@dataclass(frozen=True)
class StepReport:
    """After each round of the loop: when its step ran (unix ms), its outputs, whom it refused.

    The wall clock is read once a step: `ended_ms` is `began_ms` and what the monotonic clock says.
    """

    outputs: tuple[StepOutput, ...]
    refused: tuple[tuple[str, RequestRefusedError], ...]  # request id, why
    began_ms: float
    ended_ms: float
    intervals: Intervals


def _now_us() -> int:
    return time.monotonic_ns() // 1000


class EngineThread:
    """Makes the engine inside its own thread, then steps it whenever there is work.

    `on_step` is called from the engine's thread, also when a command changed nothing but the room
    left. An exception in it, or in the engine, ends the thread; `on_end` (called last, from the
    engine's thread, with the exception or None), `wait_ready` and `stop` report it.
    """

    def __init__(
        self,
        make: Callable[[], Engine],
        on_step: Callable[[StepReport], None],
        on_end: Callable[[BaseException | None], None] = lambda _: None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._make = make
        self._sleep = sleep
        self._on_step = on_step
        self._on_end = on_end
        self._inbox: queue.SimpleQueue[Command] = queue.SimpleQueue()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._engine: Engine | None = None
        self._error: BaseException | None = None
        self._clock = Clock(Intervals(), 0, waiting=False)

    def start(self) -> None:
        """Begin loading; returns at once."""
        self._clock = Clock(Intervals(), _now_us(), waiting=False)
        # torch aborts the process when the interpreter ends in the middle of a step, so whoever
        # ends it, and however, waits for the step.
        atexit.register(self._leave)
        self._thread.start()

    def wait_ready(self, timeout_s: float) -> Engine:
        """The loaded engine, for reading its constants. Raises what loading raised, or TimeoutError.

        Only immutable facts (spec, memory, fingerprint, context) may be read from other threads.
        """
        if not self._ready.wait(timeout_s):
            raise TimeoutError(f"the engine was not ready after {timeout_s} s")
        if self._engine is None:
            raise self._error or RuntimeError("the engine ended before it was ready")
        return self._engine

    def submit(self, request: Request) -> None:
        """Add a request; if the engine refuses it, the next report says so."""
        self._inbox.put(Add(request))

    def cancel(self, request_id: str) -> None:
        """End a request at the next step boundary."""
        self._inbox.put(Cancel(request_id))

    def stop(self, timeout_s: float | None = None) -> None:
        """End the thread after its current step; what still runs is reported as cancelled.

        Raises what ended the thread earlier, or TimeoutError: then the process, when it exits,
        waits for the step.
        """
        self._inbox.put(Stop())
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            raise TimeoutError(f"the engine's step did not end within {timeout_s} s")
        atexit.unregister(self._leave)
        if self._error is not None:
            raise self._error

    def _leave(self) -> None:
        self._inbox.put(Stop())
        self._thread.join(EXIT_S)

    @property
    def intervals(self) -> Intervals:
        """Where the time went, up to the last boundary, or to now while idle. Safe from any thread.

        Never runs backwards: now is read first, so if the state read after it is still idle, the
        engine was idle until then.
        """
        now = _now_us()
        clock = self._clock
        waited = max(0, now - clock.mark_us) if clock.waiting else 0
        return clock.intervals.plus(Intervals(idle_us=waited))

    def _run(self) -> None:
        try:
            engine = self._make()
            self._book(Intervals(startup_us=self._lap()))
            self._engine = engine
            self._ready.set()
            while self._round(engine):
                pass
        except BaseException as error:  # noqa: BLE001 - handed to whoever waits or stops
            self._error = error
        finally:
            self._ready.set()
            self._on_end(self._error)

    def _round(self, engine: Engine) -> bool:
        """Wait for work if there is none, take all commands, step once, report."""
        commands: list[Command] = []
        if engine.idle:
            self._book(Intervals(host_us=self._lap()), waiting=True)
            commands.append(self._inbox.get())
            self._book(Intervals(idle_us=self._lap()))
        while not self._inbox.empty():
            commands.append(self._inbox.get())
        refused: list[tuple[str, RequestRefusedError]] = []
        for command in commands:
            self._apply(engine, command, refused)
        stopping = any(isinstance(command, Stop) for command in commands)
        if stopping:  # the step computes nothing then, it only says who is cancelled
            for request_id in engine.running:
                engine.cancel(request_id)
        outputs = self._step(engine, tuple(refused))
        if not stopping and any(output.offset == 0 and output.token_ids for output in outputs):
            self._sleep(FIRST_TOKEN_PAUSE_S)
        return not stopping

    def _step(
        self, engine: Engine, refused: tuple[tuple[str, RequestRefusedError], ...]
    ) -> tuple[StepOutput, ...]:
        """Step once, book its time, report it."""
        before, began_ms, began_us = engine.busy_us, now_ms(), _now_us()
        outputs = tuple(engine.step())
        ended_ms = began_ms + (_now_us() - began_us) / 1e3
        busy = engine.busy_us - before
        self._book(Intervals(busy_us=busy, host_us=self._lap() - busy))
        self._on_step(StepReport(outputs, refused, began_ms, ended_ms, self._clock.intervals))
        return outputs

    @staticmethod
    def _apply(
        engine: Engine, command: Command, refused: list[tuple[str, RequestRefusedError]]
    ) -> None:
        if isinstance(command, Cancel):
            engine.cancel(command.request_id)
        elif isinstance(command, Add):
            try:
                engine.add(command.request)
            except RequestRefusedError as error:
                refused.append((command.request.id, error))

    def _lap(self) -> int:
        """Microseconds since the last boundary."""
        return _now_us() - self._clock.mark_us

    def _book(self, lap: Intervals, waiting: bool = False) -> None:
        """Account for the time since the last boundary and put the next one after it."""
        past = self._clock
        self._clock = Clock(past.intervals.plus(lap), past.mark_us + lap.total_us, waiting)
