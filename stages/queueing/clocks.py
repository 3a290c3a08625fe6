"""The clocks of queueing, passed in so that tests can turn them."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from stages.runtime.clock import now_ms


@dataclass(frozen=True)
class Clocks:
    """`now_s` is monotonic (silence, rates); `now_ms` is unix time (deadlines, stamps); `lease_s` is
    monotonic as well, for what the bus itself must do in time (ownership, deliveries)."""

    now_s: Callable[[], float] = time.monotonic
    now_ms: Callable[[], float] = now_ms
    lease_s: Callable[[], float] = time.monotonic
