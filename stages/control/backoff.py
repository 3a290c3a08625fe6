"""How long to wait before a process that ended is started again. Pure; the clock is passed in."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

AFRESH_S: Final = 0.05  # after a healthy life: whoever waits for it should not wait for us
FIRST_S: Final = 0.2
MOST_S: Final = 10.0
HEALTHY_S: Final = 30.0
LOOP: Final = 5
_DOUBLINGS: Final = 16  # many more than lead from FIRST_S to MOST_S


@dataclass
class Backoff:
    """Doubles from 0.2 s to 10 s; 30 s of readiness start it afresh, with 0.05 s."""

    clock: Callable[[], float]
    failures: int = 0
    _ready_since: float | None = field(default=None, init=False)

    def ready(self) -> None:
        """The process serves."""
        self._ready_since = self.clock()

    def ended(self) -> float:
        """The process ended: seconds until the next start."""
        since, self._ready_since = self._ready_since, None
        if since is not None and self.clock() - since >= HEALTHY_S:
            self.failures = 1
            return AFRESH_S
        self.failures += 1
        doublings = min(self.failures - 1, _DOUBLINGS)  # a float ends at 2 ** 1023
        return min(FIRST_S * 2.0**doublings, MOST_S)

    @property
    def looping(self) -> bool:
        """Whether it keeps ending without ever being healthy for long."""
        return self.failures >= LOOP
