"""Which processes live but do not work any more: no beat for long, and it is their own fault. Pure."""

from collections.abc import Mapping
from typing import Final

HUNG_S: Final = 15.0
PACE_S: Final = 3.0  # more between two looks, or from the last beat of anyone: everything is late


class Silence:
    """Looked at about once a second; the clock is passed in.

    Silence counts only while it can be blamed on the process: control is connected to the bus, its
    own loop keeps its pace, and beats of another process arrive. Whatever breaks this, such as a
    machine that was suspended or is short of cores, starts the count for all afresh.
    """

    def __init__(self, now_s: float) -> None:
        self._looked_s = now_s
        self._fair_s = now_s

    def hung(self, now_s: float, connected: bool, heard_s: Mapping[str, float]) -> list[str]:
        """Those of `heard_s` (name -> time of the last beat, of all that should beat) that hang."""
        late = now_s - self._looked_s > PACE_S
        self._looked_s = now_s
        if late or not connected or now_s - max(heard_s.values(), default=now_s) > PACE_S:
            self._fair_s = now_s
        return [name for name, at_s in heard_s.items() if now_s - max(at_s, self._fair_s) >= HUNG_S]
