"""Requests that come from another pool: stored here under the next hop, once, whoever asks how often."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Final

import nats.errors
from nats.aio.msg import Msg
from pydantic import ValidationError

from contracts import subjects
from contracts.errors import ErrorCode, HeadraceError
from contracts.internal import AdmitReply, Done, Settled, Work
from contracts.sessions import SettleSession
from contracts.topology import PoolSection
from stages.queueing.board import Board
from stages.queueing.clocks import Clocks
from stages.queueing.closing import Closing
from stages.queueing.leasing import Leasing
from stages.queueing.ledger import Entry, State
from stages.queueing.moves import terms_of
from stages.queueing.once import NotOursError, Once
from stages.queueing.pool import PoolQueue
from stages.queueing.storage import QueueStore, UnclearError
from stages.runtime.bus import Bus

STORE_S: Final = 4.0
TELL_S: Final = 1.0
TELL_TRIES: Final = 5

Sections = Callable[[], Mapping[str, PoolSection]]
Wake = Callable[[PoolQueue], None]

log = logging.getLogger("headrace.queueing")


class Arrivals:
    """Answers `hr.moved.<pool>` for the pools that we own. `wake` looks after lost requests."""

    def __init__(
        self,
        bus: Bus,
        clocks: Clocks,
        board: Board,
        store: QueueStore,
        closing: Closing,
        leasing: Leasing,
        sections: Sections,
        wake: Wake,
    ) -> None:
        self._bus = bus
        self._clocks = clocks
        self._board = board
        self._store = store
        self._closing = closing
        self._leasing = leasing
        self._sections = sections
        self._wake = wake
        self._once = Once()

    def under_way(self, request_id: str) -> bool:
        """Whether it is being stored right now."""
        return request_id in self._once

    async def arrive(self, pool: PoolQueue, work: Work, msg: Msg) -> AdmitReply | None:
        """None = no answer, we own the pool no more. Raises what admission raises."""
        return await self._once.run(work.request_id, lambda: self._arrive(pool, work, msg.data))

    async def _arrive(self, pool: PoolQueue, work: Work, raw: bytes) -> AdmitReply:
        if not pool.holds():
            raise NotOursError
        known = pool.ledger.get(work.request_id)
        if known is not None and known.work.hop >= work.hop:
            return terms_of(pool, known)
        if self._closing.ended.knows(work.request_id):
            return _over(work)
        for delivery in self._board.deliveries[pool.name].fresh.values():
            if delivery.request_id == work.request_id and delivery.hop >= work.hop:
                raise NotOursError  # this copy has turned up in the stream and is read: ask again
        self._check(pool, work)
        pool.take(work.tokens, self._clocks.now_s())
        counted = False  # by the queue, for as long as it waits there
        try:
            seq = await self._put(pool, work, raw)
            if seq is None:
                return _over(work)
            entry, counted = self._take_in(pool, work, raw, seq)
        finally:
            if not counted:
                pool.bounds.give(work.tokens)
        self._bus.spawn(self.tell(pool, entry))
        if entry.state is State.LOST:
            self._wake(pool)
        self._leasing.pump(pool)
        return terms_of(pool, entry)

    def _check(self, pool: PoolQueue, work: Work) -> None:
        section = self._sections().get(pool.name)
        if pool.gone or section is None or section.model != work.model:
            raise HeadraceError(
                ErrorCode.INVALID_REQUEST, f"pool {pool.name!r} does not serve model {work.model!r}"
            )
        if self._closing.early.knows(work.request_id):
            raise HeadraceError(ErrorCode.NO_CAPACITY, "its session is closed")
        if work.deadline_ms <= self._clocks.now_ms():
            raise HeadraceError(ErrorCode.DEADLINE_EXCEEDED, "its deadline passed")

    async def _put(self, pool: PoolQueue, work: Work, raw: bytes) -> int | None:
        """The number it is stored under; None = it came here before and has ended since."""
        end_s = self._clocks.lease_s() + STORE_S

        def go_on() -> bool:
            return pool.holds() and self._clocks.lease_s() < end_s

        try:
            put = await self._store.put(pool.name, work.request_id, work.hop, raw, go_on)
        except UnclearError:
            raise NotOursError from None  # it may be stored: it is asked again until that is clear
        if not pool.holds():
            raise NotOursError
        if put.repeated and pool.ledger.get(work.request_id) is None:
            try:
                gone = await self._store.read(put.seq) is None
            except (OSError, TimeoutError, nats.errors.Error):
                raise NotOursError from None  # unclear: it is asked again
            if not pool.holds():
                raise NotOursError
            return None if gone else put.seq
        return put.seq

    def _take_in(self, pool: PoolQueue, work: Work, raw: bytes, seq: int) -> tuple[Entry, bool]:
        """The request's entry, and whether the bounds count it as waiting from now on."""
        deliveries = self._board.deliveries[pool.name]
        known = pool.ledger.get(work.request_id)
        if known is not None and known.work.hop >= work.hop:
            return known, False  # it turned up in the stream meanwhile
        bare = work.model_copy(update={"prompt_ids": []})
        deliveries.claim(seq)
        if known is not None:  # a lower hop that was left here: it goes on as this one
            self._board.remove(pool, known.stream_seq)
            known.work, known.raw, known.stream_seq = bare, raw, seq
            known.floor = max(known.floor, work.attempt)
            return known, False
        entry = Entry(
            work=bare,
            raw=raw,
            prompt_tokens=len(work.prompt_ids),
            stream_seq=seq,
            arrival=self._board.next_arrival(),
            floor=work.attempt,
        )
        if work.attempt:  # it ran before: its egress tells what was delivered
            entry.state = State.LOST
            pool.ledger.transfer_in(entry)
            return entry, False
        pool.accept(entry)
        return entry, True

    async def tell(self, pool: PoolQueue, entry: Entry) -> None:
        """Its egress learns the new terms: the caller's decision, and the pool of the receipt."""
        for _ in range(TELL_TRIES):
            if pool.ledger.get(entry.request_id) is not entry or not pool.holds():
                return
            settled = Settled(request_id=entry.request_id, admitted=terms_of(pool, entry))
            subject = subjects.session(entry.work.egress)
            try:
                call = SettleSession(settled=settled)
                if (await self._bus.request(subject, call, Done, TELL_S)).ok:
                    return
            except (HeadraceError, ValidationError, OSError, nats.errors.Error) as error:
                log.warning("%s is not told of pool %s: %r", entry.request_id, pool.name, error)
            await asyncio.sleep(TELL_S)

    def tell_again(self, pool: PoolQueue) -> None:
        """An owner before us may have died before it could tell."""
        for entry in pool.ledger:
            if entry.work.hop:
                self._bus.spawn(self.tell(pool, entry))


def _over(work: Work) -> AdmitReply:
    """It was here and has ended: its old copy can go."""
    return AdmitReply(
        work=work.model_copy(update={"prompt_ids": []}),
        prompt_tokens=len(work.prompt_ids),
        position=0,
    )
