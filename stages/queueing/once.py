"""A request is stored once at a time: who asks again meanwhile gets the same answer."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from contracts.internal import AdmitReply


class NotOursError(Exception):
    """We cannot answer (for the most part: we own the pool no more); the question comes again."""


class Once:
    """What is being stored right now, by request id."""

    def __init__(self) -> None:
        self._running: dict[str, asyncio.Future[AdmitReply]] = {}

    def __contains__(self, request_id: object) -> bool:
        return request_id in self._running

    async def run(
        self, request_id: str, store: Callable[[], Coroutine[Any, Any, AdmitReply]]
    ) -> AdmitReply | None:
        """The answer of `store`, begun by the first who asks; it goes on when an asker leaves.

        None = no answer. Raises what `store` raises but `NotOursError`.
        """
        running = self._running.get(request_id)
        if running is None:
            running = asyncio.ensure_future(store())
            self._running[request_id] = running
            running.add_done_callback(lambda _: self._running.pop(request_id, None))
        try:
            return await asyncio.shield(running)
        except NotOursError:
            return None
