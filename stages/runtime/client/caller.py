"""What both callers have in common."""

import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable
from types import TracebackType
from typing import Self

from stages.runtime.client.answers import CALL_TIMEOUT_S, Answer
from stages.runtime.client.continuing import Place, Stream, continued


class Caller(ABC):
    """Goes on with streams that break, and closes itself at the end of `async with`."""

    @abstractmethod
    async def close(self) -> None:
        """Disconnect."""

    @abstractmethod
    def _resumed(self, request_id: str, offset: int, until: float) -> Stream:
        """A request that goes on after `offset` tokens, until it breaks or the monotonic `until`."""

    def resume(
        self, request_id: str, offset: int = 0, timeout_s: float = CALL_TIMEOUT_S
    ) -> AsyncGenerator[Answer, None]:
        """Go on with a request of the same tenant after the first `offset` tokens."""
        until = time.monotonic() + timeout_s
        place = Place(request_id, offset)
        return self._unbroken(lambda: self._resumed(request_id, offset, until), until, place)

    def _unbroken(
        self,
        first: Callable[[], Stream],
        until: float,
        place: Place,
        *,
        repeatable: bool = False,
    ) -> Stream:
        """`first`, and after every break the request from where its reader is."""
        return continued(
            first,
            lambda known, after: self._resumed(known, after, until),
            place,
            until,
            repeatable=repeatable,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        await self.close()
