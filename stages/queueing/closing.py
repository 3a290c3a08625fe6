"""How requests end: by their egress's receipt, or by ours when nobody else can write it."""

import logging
from collections.abc import Mapping
from typing import Final

import nats.errors
from nats.aio.msg import Msg
from pydantic import BaseModel

from contracts import subjects
from contracts.client import FinishReason
from contracts.errors import ErrorCode, ErrorInfo, HeadraceError
from contracts.internal import CancelNotice, Done, FailSession
from contracts.usage import ReceiptEvent
from stages.queueing.clocks import Clocks
from stages.queueing.ledger import Entry
from stages.queueing.memory import EarlyNotices
from stages.queueing.pool import PoolQueue
from stages.queueing.receipts import orphan_receipt
from stages.queueing.storage import QueueStore
from stages.runtime.bus import Bus

FAIL_S: Final = 1.0
RECEIPT_S: Final = 8.0  # less than the wait before it is tried again

log = logging.getLogger("headrace.queueing")


class Closing:
    """Ends requests of all pools."""

    def __init__(
        self, bus: Bus, clocks: Clocks, store: QueueStore, pools: Mapping[str, PoolQueue]
    ) -> None:
        self._bus = bus
        self._clocks = clocks
        self._store = store
        self._pools = pools
        self.early = EarlyNotices()

    def find(self, request_id: str) -> tuple[PoolQueue, Entry] | None:
        """An unfinished request and its pool."""
        for pool in self._pools.values():
            entry = pool.ledger.get(request_id)
            if entry is not None:
                return pool, entry
        return None

    def on_receipt(self, msg: Msg) -> None:
        """A receipt, ours or an egress's: the request has ended, the stored copy can go."""
        receipt = ReceiptEvent.model_validate_json(msg.data)
        pool = self._pools.get(receipt.pool)
        if pool is not None:
            self.end(pool, receipt.request_id, receipt.finish_reason)

    def end(self, pool: PoolQueue, request_id: str, reason: FinishReason) -> None:
        """The receipt is stored: count the end once, delete the stored copy."""
        entry = pool.end(request_id, reason)
        if entry is not None:
            self._bus.spawn(self._store.delete(entry.stream_seq))

    def on_notice(self, msg: Msg) -> None:
        """A session is closed: never lease its request; write its receipt if nobody else does."""
        notice = CancelNotice.model_validate_json(msg.data)
        if notice.attempt is not None:
            return  # our own word to an executor; the request goes on
        found = self.find(notice.request_id)
        if found is None:
            self.early.note(notice.request_id, self._clocks.now_s())
            return
        pool, entry = found
        pool.close(entry, notice.reason, self._clocks.now_s())
        if notice.orphan:
            self._bus.spawn(self._write_receipt(entry, notice.reason))

    async def fail(self, pool: PoolQueue, entry: Entry, why: str) -> None:
        """End an accepted request as an error: its egress tells the client and writes the receipt."""
        if pool.ledger.get(entry.request_id) is not entry:
            return
        pool.close(entry, FinishReason.ERROR, self._clocks.now_s())
        call = FailSession(
            request_id=entry.request_id,
            error=ErrorInfo(code=ErrorCode.INTERNAL, message=why or "the executors refused it"),
        )
        try:
            done = await self._bus.request(subjects.session(entry.work.egress), call, Done, FAIL_S)
        except (HeadraceError, ValueError, OSError, nats.errors.Error) as error:
            log.warning("egress %s did not end %s: %r", entry.work.egress, entry.request_id, error)
        else:
            if done.ok:
                return
        await self.orphan(pool, entry, FinishReason.ERROR)

    async def orphan(self, pool: PoolQueue, entry: Entry, reason: FinishReason) -> None:
        """End a request whose egress is gone: stop it wherever it runs, write its receipt.

        An egress that only stood still is told, too, so that its client does not wait for more.
        """
        if pool.ledger.get(entry.request_id) is not entry:
            return
        pool.close(entry, reason, self._clocks.now_s())
        await self._tell(
            subjects.session(entry.work.egress),
            FailSession(request_id=entry.request_id, error=_given_up(reason)),
        )
        await self._notify(entry.request_id, reason)
        await self._write_receipt(entry, reason)

    async def stop(self, request_id: str, attempt: int | None = None) -> None:
        """Stop what runs in vain: this attempt, None = every one, the request has ended."""
        await self._notify(request_id, FinishReason.CANCELLED, attempt)

    async def _notify(
        self, request_id: str, reason: FinishReason, attempt: int | None = None
    ) -> None:
        notice = CancelNotice(request_id=request_id, reason=reason, attempt=attempt)
        await self._tell(subjects.cancel(request_id), notice)

    async def _tell(self, subject: str, message: BaseModel) -> None:
        """Without waiting; a bus that is away must not stop what comes after."""
        try:
            await self._bus.publish(subject, message)
        except (OSError, nats.errors.Error) as error:
            log.warning("nothing goes to %s: %r", subject, error)

    async def _write_receipt(self, entry: Entry, reason: FinishReason) -> None:
        """Durably; our own subscription then ends the request. Tried again later when it fails."""
        receipt = orphan_receipt(entry, reason, self._clocks.now_ms())
        subject = subjects.usage("receipt", receipt.pool)
        try:
            await self._bus.store(subject, receipt, receipt.key, RECEIPT_S)
        except (OSError, TimeoutError, nats.errors.Error) as error:
            log.error("receipt of %s: %s", entry.request_id, error)


def _given_up(reason: FinishReason) -> ErrorInfo:
    if reason is FinishReason.TIMEOUT:
        return ErrorInfo(code=ErrorCode.DEADLINE_EXCEEDED, message="the deadline passed")
    text = "the egress process stood still and its requests were given up; try again"
    return ErrorInfo(code=ErrorCode.INTERNAL, message=text, retry_after_s=1.0)
