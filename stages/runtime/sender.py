"""Stores events in order, many at a time, and again until the stream has them."""

import asyncio
import logging
import time
from collections import deque
from dataclasses import dataclass
from typing import Final

import nats.errors
from pydantic import BaseModel

from stages.runtime.bus import Bus

IN_FLIGHT: Final = 64
ACK_TIMEOUT_S: Final = 2.0
PAUSE_S: Final = 0.05
PAUSE_MAX_S: Final = 1.0
COMPLAIN_S: Final = 10.0

log = logging.getLogger("headrace.sender")


@dataclass(slots=True)
class _Event:
    order: int
    subject: str
    payload: bytes
    key: str
    stored: asyncio.Future[None]


class DurableSender:
    """Events on their way into a stream, oldest first; for one event loop.

    At most `in_flight` wait for the stream's word. After a failure all that are on their way come
    back first, then the oldest alone is tried until it is stored: the order survives a stream or a
    server that was away (it can only be broken by one that fails between two of a volley). The key
    is the Msg-Id, so what was stored before its word got lost is not stored twice.
    """

    def __init__(self, bus: Bus, in_flight: int = IN_FLIGHT) -> None:
        self._bus = bus
        self._in_flight = in_flight
        self._window = 1
        self._order = 0
        self._waiting: deque[_Event] = deque()
        self._flying: dict[asyncio.Task[None], _Event] = {}
        self._failed: list[_Event] = []
        self._pause_s = PAUSE_S
        self._retry: asyncio.TimerHandle | None = None
        self._well_s = self._told_s = time.monotonic()
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def left(self) -> int:
        """Events that are not stored yet."""
        return len(self._waiting) + len(self._flying) + len(self._failed)

    def put(self, subject: str, event: BaseModel | bytes, key: str) -> asyncio.Future[None]:
        """Take an event; the answer is done once it is stored (nobody needs to wait for it).

        It fails only with `nats.errors.MaxPayloadError`, for what could never be stored, and is
        cancelled when the bus was closed before.
        """
        payload = event if isinstance(event, bytes) else event.model_dump_json().encode()
        stored = asyncio.get_running_loop().create_future()
        if not self.left:
            self._well_s = self._told_s = time.monotonic()
        self._waiting.append(_Event(self._order, subject, payload, key, stored))
        self._order += 1
        self._idle.clear()
        self._fill()
        return stored

    async def drain(self, timeout_s: float) -> bool:
        """Wait until everything is stored; False when `timeout_s` was not enough."""
        try:
            await asyncio.wait_for(self._idle.wait(), timeout_s)
        except TimeoutError:
            if not self.left:
                return True
            log.error("%d events are not stored after %.1f s", self.left, timeout_s)
        return not self.left

    def _fill(self) -> None:
        """Send on what may go now."""
        if self._retry is not None or self._failed:
            return
        if self._bus.client.is_closed:
            self._give_up()
        elif self._waiting and not self._bus.client.is_connected:
            self._rest("no connection")  # what is sent now would only fill the client's buffer
        else:
            while self._waiting and len(self._flying) < self._window:
                event = self._waiting.popleft()
                task = asyncio.get_running_loop().create_task(self._store(event))
                self._flying[task] = event
                task.add_done_callback(self._landed)

    async def _store(self, event: _Event) -> None:
        await self._bus.js.publish(
            event.subject,
            event.payload,
            timeout=ACK_TIMEOUT_S,
            headers={"Nats-Msg-Id": event.key},
        )

    def _landed(self, task: asyncio.Task[None]) -> None:
        event = self._flying.pop(task)
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        if error is None:
            self._window, self._pause_s, self._well_s = self._in_flight, PAUSE_S, time.monotonic()
            if not event.stored.done():
                event.stored.set_result(None)
        elif isinstance(error, nats.errors.MaxPayloadError):
            log.error("%s of %d bytes can never be stored", event.key, len(event.payload))
            if not event.stored.done():
                event.stored.set_exception(error)
        else:
            self._failed.append(event)
        if self._failed and not self._flying:
            self._failed.sort(key=lambda each: each.order)
            self._waiting.extendleft(reversed(self._failed))
            self._failed.clear()
            self._rest(repr(error))
        self._fill()
        if not self.left:
            self._idle.set()

    def _rest(self, why: str) -> None:
        """Try again in a while, with the oldest alone."""
        self._window = 1
        now = time.monotonic()
        if now - self._told_s >= COMPLAIN_S:
            self._told_s = now
            waited = now - self._well_s
            log.warning("%d events wait since %.0f s to be stored: %s", self.left, waited, why)
        self._retry = asyncio.get_running_loop().call_later(self._pause_s, self._again)
        self._pause_s = min(PAUSE_MAX_S, self._pause_s * 2)

    def _again(self) -> None:
        self._retry = None
        self._fill()

    def _give_up(self) -> None:
        """The bus was closed for good."""
        if self._waiting:
            log.error("the bus was closed; %d events are not stored", len(self._waiting))
        for event in self._waiting:
            event.stored.cancel()
        self._waiting.clear()
        if not self.left:
            self._idle.set()
