"""Ids that matter for a minute: sessions closed before their request came, requests that ended."""

from typing import Final

KEEP_S: Final = 60.0
KEEP_MAX: Final = 100_000


class EarlyNotices:
    """Ids of closed sessions (or ended requests), for a minute."""

    def __init__(self) -> None:
        self._known: dict[str, float] = {}  # in the order of time

    def note(self, request_id: str, now_s: float) -> None:
        """Remember one."""
        self._known.pop(request_id, None)
        self._known[request_id] = now_s
        while len(self._known) > KEEP_MAX or now_s - self._oldest() > KEEP_S:
            del self._known[next(iter(self._known))]

    def knows(self, request_id: str) -> bool:
        """Whether it was noted in the last minute."""
        return request_id in self._known

    def take(self, request_id: str) -> bool:
        """Whether a notice came before its request; it is forgotten."""
        return self._known.pop(request_id, None) is not None

    def _oldest(self) -> float:
        return next(iter(self._known.values()))
