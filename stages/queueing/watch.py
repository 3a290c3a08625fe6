"""Twice a second: who fell silent, what is overdue, where everybody stands."""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

import nats.errors

from contracts import subjects
from contracts.sessions import QueuePosition
from stages.queueing.arrivals import Arrivals
from stages.queueing.board import Board
from stages.queueing.clocks import Clocks
from stages.queueing.closing import Closing
from stages.queueing.leasing import Leasing
from stages.queueing.ledger import State
from stages.queueing.moves import Moves
from stages.queueing.pool import Loss, PoolQueue
from stages.queueing.progress import Asking
from stages.queueing.sessions import Homes
from stages.queueing.silence import overdue, strays
from stages.queueing.takeover import Takeover
from stages.runtime.bus import Bus

TICK_S: Final = 0.5
STALL_S: Final = 1.5
POSITIONS_S: Final = 5.0
POSITIONS_A_MESSAGE: Final = 1000
DESERTED_S: Final = 3.0

Lost = Callable[[PoolQueue, Iterable[Loss]], None]

log = logging.getLogger("headrace.queueing")


@dataclass(frozen=True)
class Hands:
    """What can be done for a request."""

    closing: Closing
    leasing: Leasing
    asking: Asking
    homes: Homes
    takeover: Takeover
    moves: Moves
    arrivals: Arrivals


class Watch:
    """Looks after requests whose executor or egress does not. `lost` closes lost attempts."""

    def __init__(self, bus: Bus, clocks: Clocks, board: Board, hands: Hands, lost: Lost) -> None:
        self._bus = bus
        self._clocks = clocks
        self._board = board
        self._hands = hands
        self._lost = lost
        self._positions_s = clocks.now_s()
        self._strange: dict[str, set[str]] = {}  # pool → what its executors run, unknown to us
        self._deserted: dict[str, float] = {}  # pool that left the topology → no executors since

    async def run(self) -> None:
        """Tick for ever (cancel to end).

        When this process itself stood still, what others said is still unread: nobody is silent.
        """
        loop = asyncio.get_running_loop()
        while True:
            slept_s = loop.time()
            await asyncio.sleep(TICK_S)
            if loop.time() - slept_s > STALL_S:
                log.warning("this process stood still for %.1f s", loop.time() - slept_s)
                self._board.pardon()
            try:
                await self.tick()
            except Exception:
                log.exception("the watch stumbled and goes on")

    async def tick(self) -> None:
        """One round over all pools."""
        now_s = self._clocks.now_s()
        if not self._bus.client.is_connected:
            self._board.pardon()
            return
        for name, executors in list(self._board.executors.items()):
            if name not in self._board.pools:
                executors.forget_silent(now_s)
        for notes in (self._strange, self._deserted):
            for name in notes.keys() - self._board.pools.keys():
                del notes[name]  # whoever has the pool again begins anew
        for pool in list(self._board.pools.values()):
            if pool.holds():
                await self._look_after(pool, now_s)
        if now_s - self._positions_s >= POSITIONS_S:
            self._positions_s = now_s
            self._board.egresses.forget_gone(now_s)
            await self._tell_positions()

    def look_at_lost(self, pool: PoolQueue) -> None:
        """What has just been lost need not wait for the next round."""
        if not pool.adopting and pool.holds():
            self._hands.homes.look_after(pool)
            self._hands.asking.ask(pool)

    async def _look_after(self, pool: PoolQueue, now_s: float) -> None:
        losses = pool.lose_silent(now_s)
        for loss in losses:
            log.warning("%s was lost: executor %s is silent", loss.entry.request_id, loss.executor)
        self._lost(pool, losses)
        for entry in pool.lose_missing(now_s):
            log.warning("%s ended on its executor, its last words were lost", entry.request_id)
        self._end_overdue(pool, now_s)
        if pool.gone:
            self._end_deserted(pool, now_s)
        if not pool.adopting:
            await self._look_at_stored(pool)
            self.look_at_lost(pool)
            await self._stop_strays(pool)
        self._hands.leasing.pump(pool)

    async def _look_at_stored(self, pool: PoolQueue) -> None:
        try:
            await self._hands.takeover.look_after(pool)
        except (OSError, TimeoutError, nats.errors.Error) as error:
            log.warning("stored requests of pool %s: %r", pool.name, error)

    def _end_overdue(self, pool: PoolQueue, now_s: float) -> None:
        now_ms = self._clocks.now_ms()
        for entry in pool.ledger:
            reason = overdue(entry, now_s, now_ms)
            if reason is not None:
                log.warning("no egress ends %s: ending it as %s", entry.request_id, reason)
                self._bus.spawn(self._hands.closing.orphan(pool, entry, reason))

    def _end_deserted(self, pool: PoolQueue, now_s: float) -> None:
        """The pool has left the topology, and its last executor as well."""
        if pool.executors.known:
            self._deserted.pop(pool.name, None)
            return
        if now_s - self._deserted.setdefault(pool.name, now_s) < DESERTED_S:
            return
        why = f"pool {pool.name!r} is not in the topology any more; call again"
        for entry in pool.ledger:
            if entry.state in (State.QUEUED, State.LOST):
                self._bus.spawn(self._hands.closing.fail(pool, entry, why))

    async def _stop_strays(self, pool: PoolQueue) -> None:
        """Executors run nothing in vain. What we do not know at all may only be new to us: it is
        stopped in the second round."""
        before = self._strange.get(pool.name, set())
        strange: set[str] = set()
        for executor in list(pool.executors.known.values()):
            for request_id, attempt in strays(executor, pool.ledger):
                if attempt is None:
                    strange.add(request_id)
                    if request_id not in before or self._is_elsewhere(pool, request_id):
                        continue
                await self._hands.closing.stop(pool, request_id, attempt)
        self._strange[pool.name] = strange

    def _is_elsewhere(self, pool: PoolQueue, request_id: str) -> bool:
        deliveries = self._board.deliveries.get(pool.name)
        return deliveries is not None and deliveries.names(request_id)

    async def _tell_positions(self) -> None:
        for pool in list(self._board.pools.values()):
            waiting: dict[str, dict[str, int]] = defaultdict(dict)
            for position, request_id in enumerate(pool.order):
                entry = pool.ledger.get(request_id)
                if entry is not None:
                    waiting[entry.work.egress][request_id] = position
            for egress, positions in waiting.items() if pool.holds() else ():
                await self._send_positions(egress, positions)

    async def _send_positions(self, egress: str, positions: dict[str, int]) -> None:
        for part in _parts(list(positions.items())):
            message = QueuePosition(positions=dict(part))
            await self._bus.publish(subjects.session(egress), message)


def _parts(items: list[tuple[str, int]]) -> Iterable[list[tuple[str, int]]]:
    return (
        items[start : start + POSITIONS_A_MESSAGE]
        for start in range(0, len(items), POSITIONS_A_MESSAGE)
    )
