"""Pools that have left the topology: looked after while they hold requests, then given up for good."""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

import nats.errors

from contracts.topology import Topology
from stages.queueing.board import Board
from stages.queueing.owners import Owners
from stages.queueing.pool import PoolQueue
from stages.queueing.storage import QueueStore
from stages.runtime.loops import forever

LOOK_S: Final = 0.5
SELDOM: Final = 10  # looks: nothing has left the topology as far as is known

log = logging.getLogger("headrace.queueing")


class Leaving:
    """What is stored decides which pools need an owner, not who remembers them: a request may have come
    in at the last moment, and every replica may have been started again since."""

    def __init__(
        self, board: Board, store: QueueStore, owners: Owners, topology: Callable[[], Topology]
    ) -> None:
        self._board = board
        self._store = store
        self._owners = owners
        self._topology = topology
        self._looks = 0
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Look now and then."""
        self._task = asyncio.get_running_loop().create_task(
            forever("pools that have left", self.look, LOOK_S)
        )

    def stop(self) -> None:
        """No pool comes or goes any more."""
        if self._task is not None:
            self._task.cancel()

    async def look(self) -> None:
        """Want what holds requests, give up what is empty."""
        gone = self._owners.wanted() - set(self._topology().pools)
        self._looks += 1
        if not gone and self._looks % SELDOM:
            return
        try:
            stored = await self._store.pools()
        except (OSError, TimeoutError, nats.errors.Error) as error:
            log.info("which pools hold requests is not known now: %r", error)
            return
        self._owners.want(stored)
        for name in gone:
            await self._look_at(name, stored)

    async def _look_at(self, name: str, stored: set[str]) -> None:
        pool = self._board.pools.get(name)
        standing = self._owners.standing(name)
        if name in stored:
            return
        if pool is not None and self._is_empty(pool):
            await self._owners.retire(name)
        elif standing is not None and not standing.owner and not standing.epoch:
            self._owners.forget(name)

    def _is_empty(self, pool: PoolQueue) -> bool:
        deliveries = self._board.deliveries[pool.name]
        return not (len(pool.ledger) or pool.adopting or deliveries.acking or deliveries.fresh)
