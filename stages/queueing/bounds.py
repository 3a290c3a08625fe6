"""How much may wait, and when a refused caller should come again."""

from collections import deque
from typing import Final

from contracts.errors import ErrorCode, HeadraceError
from contracts.topology import QueueSection

WINDOW_S: Final = 30.0
RETRY_MIN_S: Final = 1.0
RETRY_MAX_S: Final = 60.0
RETRY_UNKNOWN_S: Final = 5.0  # nothing has left the queue yet: no rate to go by


class Drain:
    """Requests that left the queue for an executor in the last 30 s."""

    def __init__(self) -> None:
        self._left: deque[float] = deque()

    def note(self, now_s: float) -> None:
        """One request left."""
        self._left.append(now_s)
        self._forget(now_s)

    def rate(self, now_s: float) -> float:
        """Requests per second; 0 = unknown."""
        self._forget(now_s)
        if not self._left:
            return 0.0
        return len(self._left) / max(now_s - self._left[0], 1.0)

    def _forget(self, now_s: float) -> None:
        while self._left and self._left[0] < now_s - WINDOW_S:
            self._left.popleft()


class Bounds:
    """Counts what waits, requests that are still being stored included, against the pool's limits."""

    def __init__(self, pool: str, limits: QueueSection) -> None:
        self._pool = pool
        self._limits = limits
        self.requests = 0
        self.tokens = 0
        self.drain = Drain()

    def reconfigure(self, limits: QueueSection) -> None:
        """New limits; what waits already stays."""
        self._limits = limits

    def take(self, tokens: int, now_s: float) -> None:
        """Count one more. Raises `saturated` where that would pass a limit."""
        if self.requests + 1 > self._limits.requests:
            raise self._saturated(f"{self.requests} requests wait, the limit", now_s)
        if self.requests and self.tokens + tokens > self._limits.tokens:
            raise self._saturated(
                f"{self.tokens} tokens wait, {tokens} more would pass {self._limits.tokens}", now_s
            )
        self.put(tokens)

    def put(self, tokens: int) -> None:
        """Count one that comes back: never refused."""
        self.requests += 1
        self.tokens += tokens

    def give(self, tokens: int) -> None:
        """One no longer waits."""
        self.requests -= 1
        self.tokens -= tokens

    def retry_after_s(self, now_s: float) -> float:
        """Seconds until half of the queue has drained, from 1 to 60; 5 when nothing was measured."""
        rate = self.drain.rate(now_s)
        if not rate:
            return RETRY_UNKNOWN_S
        return round(min(max(self.requests / 2 / rate, RETRY_MIN_S), RETRY_MAX_S), 1)

    def _saturated(self, why: str, now_s: float) -> HeadraceError:
        after = self.retry_after_s(now_s)
        return HeadraceError(
            ErrorCode.SATURATED,
            f"the queue of pool {self._pool!r} is full ({why}); call again in {after:g} s",
            retry_after_s=after,
            position=self.requests,
        )
