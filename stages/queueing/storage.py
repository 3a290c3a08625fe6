"""Stored requests in stream HR_QUEUE: put, and read again by a new owner."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Final

import nats.errors
import nats.js.errors
from nats.aio.msg import Msg

from contracts import subjects
from contracts.errors import ErrorCode, HeadraceError
from stages.runtime.bus import Bus

TRY_S: Final = 1.0
PAUSE_S: Final = 0.05
BATCH: Final = 256
BATCH_BYTES: Final = 16 << 20
BATCH_S: Final = 5.0
_STORE_FAILED: Final = 10077  # generic: only its text says whether the stream is full
_FULL_TEXTS: Final = ("maximum messages", "maximum bytes")
_SAME_ID_BUSY: Final = 10158
_TRANSIENT: Final = (OSError, TimeoutError, nats.errors.Error)

log = logging.getLogger("headrace.queueing")


class UnclearError(HeadraceError):
    """The deadline passed without an answer: nobody knows whether the request is stored."""

    def __init__(self) -> None:
        super().__init__(
            ErrorCode.NO_CAPACITY,
            "the request could not be stored in time; call again in 1 s",
            retry_after_s=1.0,
        )


@dataclass(frozen=True)
class Stored:
    """A stored request as read from the stream."""

    seq: int
    pool: str
    request_id: str
    hop: int
    raw: bytes


@dataclass(frozen=True)
class Put:
    """The stream's word. `repeated`: this Msg-Id was stored before, under the same number."""

    seq: int
    repeated: bool


class QueueStore:
    """The durable side of the queue."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    async def put(
        self, pool: str, request_id: str, hop: int, raw: bytes, go_on: Callable[[], bool]
    ) -> Put:
        """Store under `<request>:<hop>`, again and again as long as `go_on` says so: repeats are
        harmless.

        Raises HeadraceError: saturated (stream full), internal (refused), `UnclearError`.
        """
        while True:
            try:
                ack = await self._bus.js.publish(
                    subjects.stored(pool),
                    raw,
                    timeout=TRY_S,
                    headers={"Nats-Msg-Id": f"{request_id}:{hop}"},
                )
                return Put(int(ack.seq), bool(ack.duplicate))
            except nats.js.errors.APIError as error:
                if not _may_pass(error):
                    raise _refusal(error) from error
            except _TRANSIENT as error:
                log.warning("storing %s: %s: %s", request_id, type(error).__name__, error)
            if not go_on():
                raise UnclearError
            await asyncio.sleep(PAUSE_S)

    async def read(self, seq: int) -> bytes | None:
        """One stored request; None when it is gone. Raises bus errors."""
        try:
            found = await self._bus.js.get_msg(subjects.QUEUE_STREAM, seq, direct=True)
        except nats.js.errors.NotFoundError:
            return None
        return found.data or b""

    async def pools(self) -> set[str]:
        """Names of the pools that have stored requests. Raises bus errors."""
        info = await self._bus.js.stream_info(
            subjects.QUEUE_STREAM, subjects_filter=subjects.stored("*")
        )
        return {subject.rpartition(".")[2] for subject in info.state.subjects or {}}

    async def sweep(self) -> AsyncIterator[Stored]:
        """Every stored request of every pool, oldest first, hundreds a question. Raises bus errors."""
        seq = 1
        while True:
            batch = await self._batch(seq)
            for message in batch:
                headers = message.headers or {}
                seq = int(headers["Nats-Sequence"]) + 1
                request_id, _, hop = headers.get("Nats-Msg-Id", "").rpartition(":")
                yield Stored(
                    seq=seq - 1,
                    pool=headers["Nats-Subject"].rpartition(".")[2],
                    request_id=request_id,
                    hop=int(hop) if hop.isdigit() else 0,
                    raw=message.data,
                )
            if not batch:
                return

    async def _batch(self, seq: int) -> list[Msg]:
        """From `seq` on; empty at the end. Direct batch get (ADR-31): messages, then a status."""
        question = {
            "batch": BATCH,
            "max_bytes": BATCH_BYTES,
            "seq": seq,
            "next_by_subj": subjects.stored("*"),
        }
        inbox = self._bus.client.new_inbox()
        answers: asyncio.Queue[Msg] = asyncio.Queue()
        subscription = await self._bus.listen(inbox, answers.put_nowait)
        found: list[Msg] = []
        try:
            await self._bus.publish(
                f"$JS.API.DIRECT.GET.{subjects.QUEUE_STREAM}",
                json.dumps(question).encode(),
                reply=inbox,
            )
            async with asyncio.timeout(BATCH_S):
                while (status := (answer := await answers.get()).headers or {}).get(
                    "Status"
                ) is None:
                    found.append(answer)
        finally:
            await subscription.unsubscribe()
        if status["Status"] not in ("204", "404"):  # end of batch, nothing there
            raise nats.errors.Error(f"reading the stored requests: {status}")
        return found


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
