"""A process whose connection broke: dead, or back in a moment. Pure; the bus is in `eviction.py`."""

from collections.abc import Callable
from typing import Final

RETURN_S: Final = 0.2  # a living process is connected again by then
CALM_S: Final = 2.0  # after a restart of the bus everybody's connection broke
ON_THE_WAY_S: Final = 0.02  # words sent before the break may be read after the news of it
KEEP_MAX: Final = 10_000


class Suspects:
    """Who is under suspicion since when. Times are monotonic seconds."""

    def __init__(self) -> None:
        self._broke: dict[str, float] = {}
        self._calm_until_s = float("-inf")

    def __len__(self) -> int:
        return len(self._broke)

    def broke(self, name: str, now_s: float) -> None:
        """The server says that this process's connection has ended."""
        if len(self._broke) < KEEP_MAX:
            self._broke.setdefault(name, now_s)

    def calm(self, now_s: float) -> None:
        """The bus itself was away: nobody is evicted for 2 s."""
        self._calm_until_s = now_s + CALM_S

    def due(self, now_s: float, heard_s: Callable[[str], float]) -> list[str]:
        """Who has had its time and was not heard since; each is named once.

        `heard_s` tells when a process was last heard. Who was heard since its connection broke is
        under suspicion no more.
        """
        for name, broke_s in list(self._broke.items()):
            if heard_s(name) > broke_s + ON_THE_WAY_S:
                del self._broke[name]
        over = [name for name, broke_s in self._broke.items() if self._end_s(broke_s) <= now_s]
        for name in over:
            del self._broke[name]
        return over

    def wait_s(self, now_s: float) -> float | None:
        """Seconds until `due` can name somebody; None = nobody is under suspicion."""
        ends = [self._end_s(broke_s) for broke_s in self._broke.values()]
        return max(0.0, min(ends) - now_s) if ends else None

    def _end_s(self, broke_s: float) -> float:
        return max(broke_s + RETURN_S, self._calm_until_s)
