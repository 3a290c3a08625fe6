"""Admission to the pools that we own: check, store, queue; once for each request id."""

import asyncio

import nats.errors
from nats.aio.msg import Msg
from pydantic import BaseModel

from contracts.errors import ErrorCode, HeadraceError
from contracts.internal import AdmitReply, Work
from stages.queueing.board import Board
from stages.queueing.clocks import Clocks
from stages.queueing.closing import Closing
from stages.queueing.leasing import Leasing
from stages.queueing.ledger import Entry
from stages.queueing.memory import EarlyNotices
from stages.queueing.once import NotOursError, Once
from stages.queueing.pool import PoolQueue
from stages.queueing.storage import QueueStore, UnclearError
from stages.runtime.bus import Bus


class Admissions:
    """Answers `hr.admit.<pool>`. A repeat of a request id gets the same answer, also while the first
    is still being stored."""

    def __init__(
        self,
        bus: Bus,
        clocks: Clocks,
        board: Board,
        store: QueueStore,
        closing: Closing,
        leasing: Leasing,
    ) -> None:
        self._bus = bus
        self._clocks = clocks
        self._board = board
        self._store = store
        self._closing = closing
        self._leasing = leasing
        self._once = Once()
        self.given_up = EarlyNotices()  # refused, but perhaps stored: dropped when it turns up
        self.refused = 0

    def under_way(self, request_id: str) -> bool:
        """Whether it is being stored right now."""
        return request_id in self._once

    async def admit(self, pool: PoolQueue, work: Work, msg: Msg) -> BaseModel | None:
        """None = no answer: we own the pool no more."""
        return await self._once.run(work.request_id, lambda: self._admit(pool, work, msg.data))

    async def _admit(self, pool: PoolQueue, work: Work, raw: bytes) -> AdmitReply:
        if not pool.holds():
            raise NotOursError
        known = pool.ledger.get(work.request_id)
        if known is not None:
            return self._reply(pool, known)
        try:
            entry = await self._store_and_queue(pool, work, raw)
        except HeadraceError:
            self.refused += 1
            raise
        reply = self._reply(pool, entry)
        self._leasing.pump(pool)
        await asyncio.sleep(0)  # the lease goes out before the answer: it is the longer way
        return reply

    async def _store_and_queue(self, pool: PoolQueue, work: Work, raw: bytes) -> Entry:
        self._refuse_closed(pool, work)
        pool.take(work.tokens, self._clocks.now_s())
        try:
            seq = await self._put(pool, work, raw)
            if not pool.holds():
                raise NotOursError
            known = pool.ledger.get(work.request_id)
            if known is not None:  # a stored copy turned up meanwhile
                pool.bounds.give(work.tokens)
                return known
            self._refuse_closed(pool, work, seq)
        except BaseException:
            pool.bounds.give(work.tokens)
            raise
        entry = self._entry(work, raw, seq)
        pool.accept(entry)
        self._board.deliveries[pool.name].claim(seq)
        return entry

    async def _put(self, pool: PoolQueue, work: Work, raw: bytes) -> int:
        """Store, until the deadline; what is stored after that all the same is dropped."""

        def go_on() -> bool:
            return pool.holds() and self._clocks.now_ms() < work.deadline_ms

        try:
            put = await self._store.put(pool.name, work.request_id, work.hop, raw, go_on)
        except UnclearError:
            if not pool.holds():
                raise NotOursError from None
            self.given_up.note(work.request_id, self._clocks.now_s())
            raise
        if put.repeated and not await self._is_stored(put.seq):
            raise HeadraceError(
                ErrorCode.NO_CAPACITY, "this request has ended; call again under a new id"
            )
        return put.seq

    async def _is_stored(self, seq: int) -> bool:
        """The stream's word on a repeat may be about a copy that was removed since."""
        try:
            return await self._store.read(seq) is not None
        except (OSError, TimeoutError, nats.errors.Error):
            return True  # it comes by the consumer, or is found missing later

    def _reply(self, pool: PoolQueue, entry: Entry) -> AdmitReply:
        return AdmitReply(
            work=entry.work, prompt_tokens=entry.prompt_tokens, position=pool.position(entry)
        )

    def _refuse_closed(self, pool: PoolQueue, work: Work, seq: int | None = None) -> None:
        """Raises when the session ended, or the deadline passed, before the request was accepted."""
        if self._closing.early.take(work.request_id):
            error = HeadraceError(ErrorCode.NO_CAPACITY, "the session was closed before admission")
        elif work.deadline_ms <= self._clocks.now_ms():
            error = HeadraceError(
                ErrorCode.DEADLINE_EXCEEDED, "the deadline passed before the request was queued"
            )
        else:
            return
        if seq is not None:
            self._board.remove(pool, seq)
        raise error

    def _entry(self, work: Work, raw: bytes, seq: int) -> Entry:
        stamps = work.stamps.model_copy(update={"stored": self._clocks.now_ms()})
        return Entry(
            work=work.model_copy(update={"prompt_ids": [], "stamps": stamps}),
            raw=raw,
            prompt_tokens=len(work.prompt_ids),
            stream_seq=seq,
            arrival=self._board.next_arrival(),
        )
