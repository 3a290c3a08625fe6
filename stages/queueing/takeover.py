"""Becoming the owner of a pool: replace its consumer, read what is stored, find out what runs."""

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Final

from nats.aio.msg import Msg
from pydantic import ValidationError

from contracts import subjects
from contracts.internal import Inventory, InventoryCall
from stages.queueing.board import Board
from stages.queueing.clocks import Clocks
from stages.queueing.deliveries import Deliveries, Delivery
from stages.queueing.ledger import Entry, State
from stages.queueing.pool import PoolQueue
from stages.queueing.recovery import raise_floors, restored
from stages.queueing.storage import QueueStore, Stored
from stages.queueing.suspects import CALM_S
from stages.runtime.bus import Bus

INVENTORY_S: Final = 1.0
INVENTORY_AGAIN_S: Final = 0.2  # asked again: after a restart of the bus executors come one by one
HEARD_S: Final = 0.7
VANISHED_S: Final = 10.0
FRESH_S: Final = 0.5  # a stored request is announced, or its admission goes on, before this

log = logging.getLogger("headrace.queueing")


class Takeover:
    """Restores pools, and requests that turn up in the stream later."""

    def __init__(
        self,
        bus: Bus,
        clocks: Clocks,
        board: Board,
        store: QueueStore,
        is_over: Callable[[str], bool],
        under_way: Callable[[str], bool],
    ) -> None:
        """`is_over`: the request has ended or was refused; `under_way`: it is being admitted."""
        self._bus = bus
        self._clocks = clocks
        self._board = board
        self._store = store
        self._is_over = is_over
        self._under_way = under_way

    async def restore(self, pool: PoolQueue, deliveries: Deliveries) -> None:
        """Everything stored becomes known to the pool, as lost. Raises bus errors; then try again.

        The consumer comes first: what an earlier owner still stores is delivered to us.
        """
        await deliveries.open()
        hops: dict[str, int] = {}
        ours: list[Stored] = []
        async for stored in self._store.sweep():
            hops[stored.request_id] = max(stored.hop, hops.get(stored.request_id, 0))
            if stored.pool == pool.name:
                ours.append(stored)
        for stored in ours:
            if stored.hop < hops[stored.request_id]:
                deliveries.finish(stored.seq)  # moved on; only its removal was missed
            else:
                self._take_in(pool, deliveries, stored.seq, stored.raw)

    async def find_running(self, pool: PoolQueue) -> None:
        """Ask executors what they run: 1 s, less when all that live have answered. After a restart
        of the bus 2 s: what runs at one that is not back would be leased again, and stopped there.
        """
        waiting = [entry for entry in pool.ledger if entry.state is State.LOST]
        inbox = self._bus.client.new_inbox()
        answered: set[str] = set()
        complete = asyncio.Event()

        def collect(msg: Msg) -> None:
            if not msg.data:  # says that nobody listens
                return
            inventory = Inventory.model_validate_json(msg.data)
            if inventory.pool != pool.name:
                return
            pool.executors.expect(inventory.executor, self._clocks.now_s())
            pool.adopt(inventory.executor, inventory.running)
            answered.add(inventory.executor)
            if self._have_all(pool, answered):
                complete.set()

        subscription = await self._bus.listen(inbox, collect)
        call = InventoryCall(pool=pool.name, epoch=pool.epoch)
        end_s = time.monotonic() + INVENTORY_S
        while (
            pool.holds()
            and not complete.is_set()
            and (time.monotonic() < end_s or self._bus.connected_for_s() < CALM_S)
        ):
            await self._bus.publish(subjects.INVENTORY, call, reply=inbox)
            if not waiting:
                break  # they are told the epoch; there is nothing to find
            try:
                async with asyncio.timeout(INVENTORY_AGAIN_S):
                    await complete.wait()
            except TimeoutError:
                continue
        await subscription.unsubscribe()
        if not complete.is_set():
            raise_floors(waiting, pool.epoch)
        if waiting:
            running = sum(entry.state is State.RUNNING for entry in waiting)
            log.info("pool %s: %d of %d stored run", pool.name, running, len(waiting))

    def _have_all(self, pool: PoolQueue, answered: set[str]) -> bool:
        """Everybody who could run something of the pool has told. Executors repeat their credit twice
        a second, so we know them after that."""
        executors, now_s = pool.executors, self._clocks.now_s()
        heard = self._clocks.lease_s() - self._board.listens_s > HEARD_S
        calm = now_s - executors.vanished_s > VANISHED_S
        return heard and calm and bool(executors.known) and answered >= executors.known.keys()

    async def look_after(self, pool: PoolQueue) -> list[Entry]:
        """Take in what is stored and unknown, and replace a consumer that has forgotten something.

        Returns the requests that have turned up. Raises bus errors.
        """
        deliveries = self._board.deliveries[pool.name]
        found = [
            entry
            for delivery in list(deliveries.fresh.values())
            if (entry := await self._claim(pool, deliveries, delivery)) is not None
        ]
        if deliveries.incomplete(entry.stream_seq for entry in pool.ledger):
            log.warning("pool %s: its consumer is replaced", pool.name)
            await deliveries.open()
        return found

    async def _claim(
        self, pool: PoolQueue, deliveries: Deliveries, delivery: Delivery
    ) -> Entry | None:
        entry = pool.ledger.get(delivery.request_id)
        if entry is not None and entry.stream_seq == delivery.seq:
            deliveries.claim(delivery.seq)
        elif self._is_over(delivery.request_id):
            deliveries.finish(delivery.seq)
        elif self._under_way(delivery.request_id):
            return None
        elif self._clocks.lease_s() - delivery.at_s >= FRESH_S:
            return await self._pick_up(pool, deliveries, delivery)
        return None

    async def _pick_up(
        self, pool: PoolQueue, deliveries: Deliveries, delivery: Delivery
    ) -> Entry | None:
        """The answer to its storing was lost, or the word of a move."""
        raw = await self._store.read(delivery.seq)
        known = self._board.find(delivery.request_id)
        if raw is None or self._under_way(delivery.request_id):
            deliveries.claim(delivery.seq)
            return None
        if known is not None and known[1].work.hop >= delivery.hop:
            deliveries.finish(delivery.seq)  # a lower hop of a known request
            return None
        if known is not None:
            self._leave_behind(*known)
        log.info("request %s turned up in pool %s", delivery.request_id, pool.name)
        return self._take_in(pool, deliveries, delivery.seq, raw)

    def _leave_behind(self, pool: PoolQueue, entry: Entry) -> None:
        """A higher hop of it is stored: this one is no more."""
        pool.leave(entry)
        pool.ledger.transfer_out(entry.request_id)
        self._board.remove(pool, entry.stream_seq)

    def _take_in(
        self, pool: PoolQueue, deliveries: Deliveries, seq: int, raw: bytes
    ) -> Entry | None:
        try:
            entry = restored(raw, seq, self._board.next_arrival())
        except ValidationError:
            log.exception("stored request %d is unreadable and dropped", seq)
            deliveries.finish(seq)
            return None
        if pool.ledger.get(entry.request_id) is not None or self._is_over(entry.request_id):
            if pool.ledger.get(entry.request_id) is None:
                deliveries.finish(seq)
            return None
        pool.ledger.accept(entry)
        deliveries.claim(seq)
        return entry
