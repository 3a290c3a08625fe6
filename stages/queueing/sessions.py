"""Sessions that change their egress: taken over on request, or given to another one when it is lost."""

import asyncio
import logging
from typing import Final

import nats.errors
from nats.aio.msg import Msg

from contracts import subjects
from contracts.errors import ErrorCode, HeadraceError
from contracts.internal import AdmitReply, Done
from contracts.sessions import AdoptSession, TakeReply, TakeSession, YieldSession
from stages.queueing.board import Board
from stages.queueing.clocks import Clocks
from stages.queueing.ledger import Entry, State
from stages.queueing.pool import PoolQueue
from stages.queueing.progress import Asking
from stages.runtime.bus import Bus

ADOPT_S: Final = 2.0
AT_ONCE: Final = 32
_GIVEN: Final = (State.QUEUED, State.RUNNING, State.LOST)

log = logging.getLogger("headrace.queueing")


def terms(pool: PoolQueue, entry: Entry, egress: str) -> AdmitReply:
    """What `egress` has to know of a request that was accepted before."""
    return AdmitReply(
        work=entry.work.model_copy(update={"egress": egress}),
        prompt_tokens=entry.prompt_tokens,
        position=pool.position(entry),
    )


class Homes:
    """Where the sessions of our requests are."""

    def __init__(self, bus: Bus, clocks: Clocks, board: Board, asking: Asking) -> None:
        self._bus = bus
        self._clocks = clocks
        self._board = board
        self._asking = asking
        self._busy: set[str] = set()  # pools with a search under way
        self._turn = 0

    async def take(self, pool: PoolQueue, call: TakeSession, _: Msg) -> TakeReply | None:
        """`hr.take.<pool>`. Raises not_found, in the same words for another tenant's request."""
        if not pool.holds():
            return None
        entry = pool.ledger.get(call.request_id)
        if entry is None or entry.work.tenant != call.tenant or entry.state is State.CLOSING:
            raise HeadraceError(
                ErrorCode.NOT_FOUND, f"there is no open request {call.request_id!r}"
            )
        before = entry.work.egress
        entry.move_to(call.egress)
        return TakeReply(
            terms=terms(pool, entry, call.egress),
            executor=entry.executor,
            attempt=entry.attempt,
            before=before,
        )

    def look_after(self, pool: PoolQueue) -> None:
        """Find a new egress for every request whose egress is lost."""
        now_s = self._clocks.now_s()
        lost: dict[str, list[Entry]] = {}
        for entry in pool.ledger:
            if entry.state is State.CLOSING:
                continue
            if not self._board.egresses.silent(entry.work.egress, now_s):
                entry.homeless_s = None
                continue
            entry.homeless_s = now_s if entry.homeless_s is None else entry.homeless_s
            if entry.state in _GIVEN:
                lost.setdefault(entry.work.egress, []).append(entry)
        if lost and pool.name not in self._busy and self._board.egresses.open(now_s):
            self._busy.add(pool.name)
            self._bus.spawn(self._give_all(pool, lost))

    async def _give_all(self, pool: PoolQueue, lost: dict[str, list[Entry]]) -> None:
        try:
            for egress, entries in lost.items():
                log.warning("egress %s is lost with %d requests", egress, len(entries))
                await self._asking.search(entries, egress)
                left = [entry for entry in entries if entry.work.egress == egress]
                for start in range(0, len(left), AT_ONCE):
                    part = left[start : start + AT_ONCE]
                    await asyncio.gather(*(self._give(pool, entry) for entry in part))
        finally:
            self._busy.discard(pool.name)

    async def _give(self, pool: PoolQueue, entry: Entry) -> None:
        """To one egress, the next at each try; nobody took it = tried again in the next round."""
        open_ = self._board.egresses.open(self._clocks.now_s())
        if not open_ or entry.state not in _GIVEN or not pool.holds():
            return
        if pool.ledger.get(entry.request_id) is not entry:
            return
        self._turn += 1
        egress = open_[self._turn % len(open_)]
        call = AdoptSession(
            terms=terms(pool, entry, egress), executor=entry.executor, attempt=entry.attempt
        )
        try:
            done = await self._bus.request(subjects.session(egress), call, Done, ADOPT_S)
        except (HeadraceError, ValueError, OSError, nats.errors.Error) as error:
            log.warning("egress %s did not take %s: %r", egress, entry.request_id, error)
            return
        if done.ok:
            before = entry.work.egress
            entry.move_to(egress)
            if pool.holds():  # should it only have stood still, it has nothing to end any more
                gone = YieldSession(request_id=entry.request_id, egress=egress)
                await self._bus.publish(subjects.session(before), gone)
