"""An executor's life in intervals that tile it: from spawn to exit, no gap, no overlap."""

from dataclasses import dataclass

from contracts.usage import IntervalEvent, Price
from gpu_worker.driver import Intervals


@dataclass(frozen=True)
class Identity:
    """What this executor says of itself in every interval and attempt."""

    executor: str
    pool: str
    model: str
    zone: str
    device: str
    generation: int
    price: Price
    fraction: float = 1.0  # of its machine
    fingerprint: str = ""  # known once the model is loaded


class Timekeeper:
    """Turns the engine thread's running totals into consecutive events.

    The first begins at the spawn; what passed before the thread started counts as startup. The wall
    clock is read once: all later boundaries follow from the thread's monotonic totals. An event
    says what `identity` is when it is made; whoever changes it reports first.
    """

    def __init__(self, identity: Identity, spawned_ms: float, thread_started_ms: float) -> None:
        self.identity = identity
        self._prelude_ms = max(0.0, thread_started_ms - spawned_ms)
        self._reported = Intervals()
        self.end_ms = spawned_ms

    def report(self, total: Intervals, *, draining: bool) -> IntervalEvent | None:
        """The stretch since the last report; None when no time passed."""
        past = self._reported
        startup = self._prelude_ms + (total.startup_us - past.startup_us) / 1e3
        busy = (total.busy_us - past.busy_us) / 1e3
        host = (total.host_us - past.host_us) / 1e3
        idle = (total.idle_us - past.idle_us) / 1e3
        length = startup + busy + host + idle
        if length <= 0:
            return None
        start = self.end_ms
        self.end_ms = start + length
        self._reported, self._prelude_ms = total, 0.0
        i = self.identity
        return IntervalEvent(
            executor=i.executor,
            pool=i.pool,
            model=i.model,
            zone=i.zone,
            device=i.device,
            generation=i.generation,
            start_ms=start,
            end_ms=self.end_ms,
            startup_ms=startup,
            busy_ms=busy,
            host_ms=host,
            idle_ms=0.0 if draining else idle,
            drain_ms=idle if draining else 0.0,
            price=i.price,
            fraction=i.fraction,
            fingerprint=i.fingerprint,
        )
