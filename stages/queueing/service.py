"""Wiring of the queue: admission, credit, receipts, notices, beats; one process for all pools."""

import asyncio
import contextlib
import logging
from typing import Final

from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from pydantic import BaseModel, ValidationError

from contracts import subjects
from contracts.errors import ErrorCode, HeadraceError
from contracts.frames import CREDIT_DECODER
from contracts.internal import AdmitReply, Inventory, InventoryCall, Work
from contracts.topology import Topology
from stages.queueing.clocks import Clocks
from stages.queueing.closing import Closing
from stages.queueing.leasing import Leasing
from stages.queueing.ledger import Entry, State
from stages.queueing.pool import PoolQueue
from stages.queueing.recovery import adopt, restored
from stages.queueing.storage import QueueStore
from stages.queueing.watch import Watch
from stages.runtime.stage import Context
from stages.runtime.streams import ensure_streams

INVENTORY_S: Final = 1.0

log = logging.getLogger("headrace.queueing")


class QueueingService:
    """Holds what waits and what runs; restarts lose nothing that was accepted."""

    def __init__(self, context: Context, clocks: Clocks | None = None) -> None:
        self._context = context
        self._bus = context.bus
        self._clocks = clocks or Clocks()
        self.pools = {
            name: PoolQueue(name, section) for name, section in context.topology.pools.items()
        }
        self._store = QueueStore(self._bus)
        self._closing = Closing(self._bus, self._clocks, self._store, self.pools)
        self._leasing = Leasing(self._bus, self._clocks, self._closing.fail, self._closing.stop)
        self._watch = Watch(self._bus, self._clocks, self.pools, self._closing, self._leasing)
        self._admissions: list[Subscription] = []
        self._watching: asyncio.Task[None] | None = None
        self._arrivals = 0
        self._refused = 0

    async def start(self) -> None:
        """Read what is stored, subscribe, adopt in the background. Raises bus errors."""
        await ensure_streams(self._bus.js, self._context.topology)
        await self._bus.listen(subjects.CANCEL_ALL, self._closing.on_notice)
        await self._bus.listen(subjects.beat("egress", "*"), self._watch.on_beat)
        await self._bus.listen(subjects.usage("receipt", "*"), self._closing.on_receipt)
        await self._add_gone_pools()
        for name in self.pools:
            await self._restore(name)
        if any(len(pool.ledger) for pool in self.pools.values()):
            self._leasing.paused = True
            self._bus.spawn(self._adopt())
        for name in self.pools:
            await self._bus.listen(subjects.credit(name), self._on_credit)
        for name in self._context.topology.pools:
            self._admissions.append(
                await self._bus.serve(subjects.admit(name), Work, self._admit, queue="queueing")
            )
        self._watching = asyncio.get_running_loop().create_task(self._watch.run())

    async def prepare(self, topology: Topology) -> None:
        """Nothing to load."""

    async def reconfigure(self, topology: Topology, generation: int) -> None:
        """Nothing to change yet."""

    async def drain(self) -> None:
        """Admit nothing more; what is stored waits for the next start, what runs goes on."""
        for subscription in self._admissions:
            await subscription.drain()  # type: ignore[no-untyped-call]  # nats-py's is unannotated
        self._leasing.paused = True
        await self._bus.settle(3.0)  # of limits.DRAIN_S
        if self._watching is not None:
            self._watching.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._watching

    def counters(self) -> dict[str, float]:
        """The conservation law's figures and leases, summed over pools; `refused` was never stored."""
        total: dict[str, float] = {"refused": self._refused}
        for pool in self.pools.values():
            for name, value in pool.counters().items():
                total[name] = total.get(name, 0) + value
        return total

    def detail(self) -> dict[str, str]:
        """A line for each pool."""
        return {name: pool.detail() for name, pool in self.pools.items()}

    async def _admit(self, work: Work, msg: Msg) -> BaseModel:
        try:
            return await self._store_and_queue(work, msg.data)
        except HeadraceError:
            self._refused += 1
            raise

    async def _store_and_queue(self, work: Work, raw: bytes) -> AdmitReply:
        pool = self.pools[_pool_of(work)]
        self._refuse_closed(work)
        if pool.ledger.get(work.request_id) is not None:
            raise HeadraceError(
                ErrorCode.INVALID_REQUEST, "this request id is taken", field="request_id"
            )
        pool.take(work.tokens, self._clocks.now_s())
        try:
            seq = await self._put(pool, work.request_id, raw)
            self._refuse_closed(work, seq)
        except BaseException:
            pool.bounds.give(work.tokens)
            raise
        entry = self._entry(work, raw, seq)
        position = pool.accept(entry)
        self._leasing.pump(pool)
        await asyncio.sleep(0)  # the lease goes out before the answer: it is the longer way
        return AdmitReply(work=entry.work, prompt_tokens=entry.prompt_tokens, position=position)

    async def _put(self, pool: PoolQueue, request_id: str, raw: bytes) -> int:
        try:
            return await self._store.put(pool.name, request_id, raw)
        except HeadraceError as error:
            if error.info.code is ErrorCode.NO_CAPACITY:
                self._bus.spawn(self._store.forget(pool.name, request_id, raw))
            raise

    def _refuse_closed(self, work: Work, seq: int | None = None) -> None:
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
            self._bus.spawn(self._store.delete(seq))
        raise error

    def _entry(self, work: Work, raw: bytes, seq: int) -> Entry:
        self._arrivals += 1
        stamps = work.stamps.model_copy(update={"stored": self._clocks.now_ms()})
        return Entry(
            work=work.model_copy(update={"prompt_ids": [], "stamps": stamps}),
            raw=raw,
            prompt_tokens=len(work.prompt_ids),
            stream_seq=seq,
            arrival=self._arrivals,
        )

    def _on_credit(self, msg: Msg) -> None:
        credit = CREDIT_DECODER.decode(msg.data)
        pool = self.pools.get(credit.pool)
        if pool is not None and pool.executors.hear(credit, self._clocks.now_s()):
            self._leasing.pump(pool)

    async def _add_gone_pools(self) -> None:
        """Pools that were taken out of the topology while requests were stored for them."""
        some = next(iter(self._context.topology.pools.values()))  # nothing is admitted by it
        for name in await self._store.pools():
            if name not in self.pools:
                log.warning("pool %s is gone: of its requests, those that run may end", name)
                self.pools[name] = PoolQueue(name, some, gone=True)

    async def _restore(self, name: str) -> None:
        pool = self.pools[name]
        async for seq, raw in self._store.unfinished(name):
            self._arrivals += 1
            try:
                entry = restored(raw, seq, self._arrivals)
            except ValidationError:
                log.exception("stored request %d is unreadable and dropped", seq)
                self._bus.spawn(self._store.delete(seq))
                continue
            if pool.ledger.get(entry.request_id) is None:
                pool.accept_lost(entry)

    async def _adopt(self) -> None:
        """Ask executors what they run; the watch asks egresses about the rest."""
        inventories = await self._inventories()
        for pool in self.pools.values():
            lost = [entry for entry in pool.ledger if entry.state is State.LOST]
            adopted = adopt(lost, inventories)
            if lost:
                log.info("pool %s: %d of %d stored run", pool.name, adopted, len(lost))
        self._leasing.paused = False

    async def _inventories(self) -> list[Inventory]:
        found: list[Inventory] = []
        inbox = self._bus.client.new_inbox()

        def collect(msg: Msg) -> None:
            if msg.data:  # an empty one says that nobody listens
                found.append(Inventory.model_validate_json(msg.data))

        subscription = await self._bus.listen(inbox, collect)
        await self._bus.publish(subjects.INVENTORY, InventoryCall(), reply=inbox)
        await asyncio.sleep(INVENTORY_S)
        await subscription.unsubscribe()
        return found


def _pool_of(work: Work) -> str:
    assert work.pool is not None  # routing has set it: it chose the subject
    return work.pool
