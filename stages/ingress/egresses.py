"""Which egress processes live, and which one gets the next NATS client."""

from typing import Final

from contracts.errors import ErrorCode, HeadraceError
from contracts.internal import Beat

FRESH_S: Final = 2.0
RETRY_S: Final = 1.0


class Egresses:
    """Egress incarnations by their beats. Times are monotonic seconds."""

    def __init__(self) -> None:
        self._heard: dict[str, tuple[float, bool]] = {}
        self._turn = 0

    def hear(self, beat: Beat, now_s: float) -> None:
        """A beat came."""
        self._heard[beat.incarnation] = (now_s, beat.ready)
        self._heard = {n: seen for n, seen in self._heard.items() if now_s - seen[0] < FRESH_S}

    def alive(self, now_s: float) -> list[str]:
        """Heard in the last 2 s; they may be draining."""
        return sorted(name for name, (heard, _) in self._heard.items() if now_s - heard < FRESH_S)

    def pick(self, now_s: float) -> str:
        """One that takes new sessions, in turn. Raises no_capacity."""
        ready = [name for name in self.alive(now_s) if self._heard[name][1]]
        if not ready:
            raise HeadraceError(
                ErrorCode.NO_CAPACITY,
                f"no egress process is ready; call again in {RETRY_S:g} s",
                retry_after_s=RETRY_S,
            )
        self._turn += 1
        return ready[self._turn % len(ready)]

    def drop(self, name: str) -> None:
        """It did not answer: not to be picked before its next beat."""
        self._heard.pop(name, None)
