"""How requests end: by their egress's receipt, or by ours when nobody else can write it."""

import logging
from collections.abc import Callable, Mapping
from typing import Final

import nats.errors
from nats.aio.msg import Msg
from pydantic import BaseModel

from contracts import subjects
from contracts.client import FinishReason
from contracts.errors import ErrorCode, ErrorInfo, HeadraceError
from contracts.internal import CancelNotice, Done
from contracts.sessions import FailSession
from contracts.usage import ReceiptEvent
from stages.queueing.clocks import Clocks
from stages.queueing.ledger import Entry
from stages.queueing.memory import EarlyNotices
from stages.queueing.pool import PoolQueue
from stages.queueing.receipts import orphan_receipt
from stages.runtime.bus import Bus

FAIL_S: Final = 1.0
RECEIPT_S: Final = 8.0  # less than the wait before it is tried again

Remove = Callable[[PoolQueue, int], None]

log = logging.getLogger("headrace.queueing")


class Closing:
    """Ends requests of the pools that we own. `remove` takes a stored request out of the stream."""

    def __init__(
        self, bus: Bus, clocks: Clocks, pools: Mapping[str, PoolQueue], remove: Remove
    ) -> None:
        self._bus = bus
        self._clocks = clocks
        self._pools = pools
        self._remove = remove
        self.early = EarlyNotices()
        self.ended = EarlyNotices()  # requests that are over: their stored copy may come once more

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
        found = self.find(receipt.request_id)  # its pool may be another one by now
        if found is not None:
            self.end(found[0], receipt.request_id, receipt.finish_reason)

    def end(self, pool: PoolQueue, request_id: str, reason: FinishReason) -> None:
        """The receipt is stored: count the end once, remove the stored copy."""
        if not pool.holds():
            return
        entry = pool.end(request_id, reason)
        if entry is not None:
            self.ended.note(request_id, self._clocks.now_s())
            self._remove(pool, entry.stream_seq)

    def on_notice(self, msg: Msg) -> None:
        """A session is closed: never lease its request; write its receipt if nobody else does."""
        notice = CancelNotice.model_validate_json(msg.data)
        if notice.attempt is not None:
            return  # our own word to an executor; the request goes on
        found = self.find(notice.request_id)
        if notice.pool is not None and (found is None or found[0].name != notice.pool):
            return  # an owner's word to executors of its own pool, which the request has left
        if found is None:
            self.early.note(notice.request_id, self._clocks.now_s())
            return
        pool, entry = found
        pool.close(entry, notice.reason, self._clocks.now_s())
        if notice.orphan:
            self._bus.spawn(self._write_receipt(pool, entry, notice.reason))

    async def fail(self, pool: PoolQueue, entry: Entry, why: str) -> None:
        """End an accepted request as an error: its egress tells the client and writes the receipt."""
        if pool.ledger.get(entry.request_id) is not entry or not pool.holds():
            return
        pool.close(entry, FinishReason.ERROR, self._clocks.now_s())
        call = FailSession(
            request_id=entry.request_id,
            error=ErrorInfo(code=ErrorCode.INTERNAL, message=why or "the executors refused it"),
            pool=pool.name,
            epoch=pool.epoch,
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
        if pool.ledger.get(entry.request_id) is not entry or not pool.holds():
            return
        pool.close(entry, reason, self._clocks.now_s())
        told = FailSession(
            request_id=entry.request_id,
            error=_given_up(reason),
            pool=pool.name,
            epoch=pool.epoch,
        )
        await self._tell(pool, subjects.session(entry.work.egress), told)
        await self.stop(pool, entry.request_id, reason=reason)
        await self._write_receipt(pool, entry, reason)

    async def stop(
        self,
        pool: PoolQueue,
        request_id: str,
        attempt: int | None = None,
        reason: FinishReason = FinishReason.CANCELLED,
    ) -> None:
        """Stop what runs in vain: this attempt, None = every one, the request has ended."""
        notice = CancelNotice(
            request_id=request_id,
            reason=reason,
            attempt=attempt,
            pool=pool.name,
            epoch=pool.epoch,
        )
        await self._tell(pool, subjects.cancel(request_id), notice)

    async def _tell(self, pool: PoolQueue, subject: str, message: BaseModel) -> None:
        """Without waiting; a bus that is away must not stop what comes after."""
        if not pool.holds():
            return
        try:
            await self._bus.publish(subject, message)
        except (OSError, nats.errors.Error) as error:
            log.warning("nothing goes to %s: %r", subject, error)

    async def _write_receipt(self, pool: PoolQueue, entry: Entry, reason: FinishReason) -> None:
        """Durably; our own subscription then ends the request. Tried again later when it fails."""
        if not pool.holds():
            return
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
