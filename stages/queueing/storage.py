"""Stored requests in stream HR_QUEUE: put, read again after a restart, delete when finished."""

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator
from typing import Final

import nats.errors
import nats.js.errors

from contracts import subjects
from contracts.errors import ErrorCode, HeadraceError
from stages.runtime.bus import Bus

PUT_S: Final = 3.0
TRY_S: Final = 1.0
PAUSE_S: Final = 0.05
FORGET_S: Final = 60.0
_STORE_FAILED: Final = 10077  # generic: only its text says whether the stream is full
_FULL_TEXTS: Final = ("maximum messages", "maximum bytes")
_SAME_ID_BUSY: Final = 10158
_NO_MESSAGE: Final = (10037, 10043)  # deleted already
_TRANSIENT: Final = (OSError, TimeoutError, nats.errors.Error)

log = logging.getLogger("headrace.queueing")


class QueueStore:
    """The durable side of the queue. A request is deleted by the sequence number of its storing."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    async def put(self, pool: str, request_id: str, raw: bytes, limit_s: float = PUT_S) -> int:
        """Store and return the stream sequence; repeats within `limit_s` are harmless (Msg-Id).

        Raises HeadraceError: saturated (stream full), internal (refused), no_capacity (no answer:
        whether it is stored is unknown; `forget` settles that).
        """
        end = time.monotonic() + limit_s
        while True:
            try:
                ack = await self._bus.js.publish(
                    subjects.stored(pool),
                    raw,
                    timeout=TRY_S,
                    headers={"Nats-Msg-Id": f"{request_id}:0"},
                )
                return int(ack.seq)
            except nats.js.errors.APIError as error:
                if not _may_pass(error):
                    raise _refusal(error) from error
            except _TRANSIENT as error:
                log.warning("storing %s: %s: %s", request_id, type(error).__name__, error)
            if time.monotonic() >= end:
                raise HeadraceError(
                    ErrorCode.NO_CAPACITY,
                    "the request could not be stored in time; call again in 1 s",
                    retry_after_s=1.0,
                )
            await asyncio.sleep(PAUSE_S)

    async def forget(self, pool: str, request_id: str, raw: bytes) -> None:
        """After an unclear `put`: learn the sequence by storing again, then delete it."""
        try:
            await self.delete(await self.put(pool, request_id, raw, FORGET_S))
        except HeadraceError as error:
            log.warning("request %s may be left in the stream: %s", request_id, error)

    async def delete(self, stream_seq: int) -> None:
        """Delete one stored request; one that is gone already is fine. Tries for a minute."""
        call = json.dumps({"seq": stream_seq, "no_erase": True}).encode()
        subject = f"$JS.API.STREAM.MSG.DELETE.{subjects.QUEUE_STREAM}"
        end = time.monotonic() + FORGET_S
        while time.monotonic() < end:
            try:
                answer = json.loads((await self._bus.client.request(subject, call, TRY_S)).data)
            except _TRANSIENT:
                await asyncio.sleep(PAUSE_S)
                continue
            error = answer.get("error")
            if error and error.get("err_code") not in _NO_MESSAGE:
                log.error("deleting stored request %d: %s", stream_seq, error)
            return
        log.error("stored request %d could not be deleted", stream_seq)

    async def pools(self) -> list[str]:
        """Names of the pools that have stored requests."""
        info = await self._bus.js.stream_info(
            subjects.QUEUE_STREAM, subjects_filter=subjects.stored("*")
        )
        return sorted(subject.rpartition(".")[2] for subject in info.state.subjects or {})

    async def unfinished(self, pool: str) -> AsyncIterator[tuple[int, bytes]]:
        """Every stored request of a pool with its sequence, oldest first."""
        seq = 1
        while True:
            try:
                found = await self._bus.js.get_msg(
                    subjects.QUEUE_STREAM, seq, subjects.stored(pool), direct=True, next=True
                )
            except nats.js.errors.NotFoundError:
                return
            assert found.seq is not None
            yield found.seq, found.data or b""
            seq = found.seq + 1


def _is_full(error: nats.js.errors.APIError) -> bool:
    text = error.description or ""
    return error.err_code == _STORE_FAILED and any(full in text for full in _FULL_TEXTS)


def _may_pass(error: nats.js.errors.APIError) -> bool:
    return not _is_full(error) and (error.err_code == _SAME_ID_BUSY or error.code == 503)


def _refusal(error: nats.js.errors.APIError) -> HeadraceError:
    if _is_full(error):
        return HeadraceError(
            ErrorCode.SATURATED,
            "the store for waiting requests is full (bus.store_bytes); call again in 5 s",
            retry_after_s=5.0,
        )
    log.error("the stream refused a request: %s", error)
    return HeadraceError(
        ErrorCode.INTERNAL, f"the request could not be stored: {error.description}"
    )
