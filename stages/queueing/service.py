"""Wiring of the queue: what every replica hears, and what the owner of a pool does."""

import asyncio
import contextlib
import logging
from collections.abc import Iterable, Mapping
from typing import Final

from nats.aio.msg import Msg

from contracts import subjects
from contracts.internal import Release
from contracts.topology import PoolSection, Topology
from stages.queueing.admission import Admissions
from stages.queueing.arrivals import Arrivals
from stages.queueing.attempts import Attempts
from stages.queueing.board import Board
from stages.queueing.clocks import Clocks
from stages.queueing.closing import Closing
from stages.queueing.eviction import Eviction, Kind
from stages.queueing.leasing import Leasing
from stages.queueing.leaving import Leaving
from stages.queueing.ledger import Entry, Ledger
from stages.queueing.moves import Moves
from stages.queueing.owners import Owners
from stages.queueing.ownership import Timing
from stages.queueing.pool import Loss, PoolQueue
from stages.queueing.progress import Asking
from stages.queueing.realm import Realm
from stages.queueing.sessions import Homes
from stages.queueing.storage import QueueStore
from stages.queueing.takeover import Takeover
from stages.queueing.watch import Hands, Watch
from stages.runtime.sender import DurableSender
from stages.runtime.stage import Context
from stages.runtime.streams import ensure_streams

SETTLE_S: Final = 2.0  # of limits.DRAIN_S
ROWS_S: Final = 0.5

log = logging.getLogger("headrace.queueing")


class QueueingService:
    """Holds what waits and what runs in the pools it owns; a standby for the others."""

    def __init__(
        self, context: Context, clocks: Clocks | None = None, timing: Timing | None = None
    ) -> None:
        self._context = context
        self._bus = context.bus
        self._clocks = clocks = clocks or Clocks()
        self.board = board = Board(clocks)
        self.pools = board.pools
        self.store = QueueStore(self._bus)
        self.attempts = Attempts(
            DurableSender(self._bus),
            context.topology,
            context.generation,
            clocks.now_s,
            clocks.now_ms,
        )
        self.closing = Closing(self._bus, clocks, board.pools, board.remove)
        self.leasing = Leasing(
            self._bus, clocks, self.closing.fail, self.closing.stop, self._lost_attempt
        )
        self.admissions = Admissions(
            self._bus, clocks, board, self.store, self.closing, self.leasing
        )
        hands = self._hands()
        self._watch = Watch(self._bus, clocks, board, hands, self._lost)
        self.realm = Realm(self._bus, clocks, board, hands, self._watch, self.admissions)
        self.owners = Owners(
            self._bus, context.launch.incarnation, clocks.lease_s, timing or Timing(), self.realm
        )
        self.realm.begin(self.owners, context.topology)
        self._leaving = Leaving(board, self.store, self.owners, lambda: self.realm.topology)
        self._eviction = Eviction(self._bus, clocks.now_s, self._kinds())
        self._watching: asyncio.Task[None] | None = None

    def _hands(self) -> Hands:
        bus, clocks, board = self._bus, self._clocks, self.board
        asking = Asking(bus, clocks, board, self.closing, self.leasing)
        self.moves = Moves(bus, clocks, board, self._sections, self._wake)
        self.arrivals = Arrivals(
            bus,
            clocks,
            board,
            self.store,
            self.closing,
            self.leasing,
            self._sections,
            self._wake,
        )
        return Hands(
            closing=self.closing,
            leasing=self.leasing,
            asking=asking,
            homes=Homes(bus, clocks, board, asking),
            takeover=Takeover(bus, clocks, board, self.store, self._is_over, self._is_under_way),
            moves=self.moves,
            arrivals=self.arrivals,
        )

    def _sections(self) -> Mapping[str, PoolSection]:
        return self.realm.topology.pools

    def _wake(self, pool: PoolQueue) -> None:
        self._watch.look_at_lost(pool)

    def _is_under_way(self, request_id: str) -> bool:
        """It is ours, though in no ledger: being admitted, on its way out, or just coming."""
        parts = (self.admissions, self.arrivals, self.moves)
        return any(part.under_way(request_id) for part in parts)

    async def start(self) -> None:
        """Hear everybody; own what is free. Raises bus errors."""
        await ensure_streams(self._bus.js, self._context.topology)
        for subject, hear in (
            (subjects.CANCEL_ALL, self.closing.on_notice),
            (subjects.beat("egress", "*"), self.board.on_beat),
            (subjects.usage("receipt", "*"), self.closing.on_receipt),
            (subjects.usage("attempt", "*"), self.attempts.on_row),
            (subjects.attempts("*"), self.attempts.on_report),
            (subjects.CREDIT_ALL, self._on_credit),
            (subjects.release("*"), self._on_release),
            (subjects.DISCONNECTED, self._eviction.on_disconnect),
        ):
            await self._bus.listen(subject, hear)
        self.owners.want(await self.store.pools() | set(self._context.topology.pools))
        await self.owners.start()
        await self.realm.settled()
        self._leaving.start()
        self._watching = asyncio.get_running_loop().create_task(self._watch.run())

    async def prepare(self, topology: Topology) -> None:
        """Raises conflict where a pool would go that holds requests."""
        self.realm.check(topology)

    async def reconfigure(self, topology: Topology, generation: int) -> None:
        """Bounds, buckets, prices; pools that come and go. What waits and runs goes on."""
        await ensure_streams(self._bus.js, topology)
        self.attempts.reconfigure(topology, generation)
        await self.realm.reconfigure(topology)

    async def drain(self) -> None:
        """Admit nothing more, then give every pool up: what is stored waits for its next owner,
        what runs goes on."""
        self.leasing.paused = True
        await self.realm.stop_admissions()
        await self._bus.settle(SETTLE_S)
        await self.attempts.drain(ROWS_S)
        if self._watching is not None:
            self._watching.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._watching
        self._leaving.stop()
        await self.owners.stop()

    async def kill(self) -> None:
        """End without a farewell, for tests; the connection is closed by the caller."""
        self._leaving.stop()
        await self.owners.kill()
        if self._watching is not None:
            self._watching.cancel()

    def counters(self) -> dict[str, float]:
        """The conservation law's figures and leases, summed over the pools owned here; `refused` was
        never stored."""
        total = {"refused": float(self.admissions.refused), **Ledger().counters()}
        for pool in self.pools.values():
            for name, value in pool.counters().items():
                total[name] = total.get(name, 0) + value
        return total

    def detail(self) -> dict[str, str]:
        """A line for each pool."""
        return self.realm.detail()

    def lose_executor(self, name: str) -> None:
        """This incarnation is gone: what it ran is lost, at once."""
        for executors in self.board.executors.values():
            executors.forget(name)
        for pool in list(self.pools.values()):
            losses = pool.lose_executor(name)
            if losses:
                log.warning("executor %s is gone with %d requests", name, len(losses))
                self._lost(pool, losses)
                self._watch.look_at_lost(pool)

    def lose_egress(self, name: str) -> None:
        """This incarnation is gone: its sessions go to another one, at once."""
        self.board.egresses.gone(name, self._clocks.now_s())
        for pool in list(self.pools.values()):
            self._watch.look_at_lost(pool)

    def _lost(self, pool: PoolQueue, losses: Iterable[Loss]) -> None:
        """Each round, too: attempts that no request of ours names any more."""
        for loss in losses:
            self._lost_attempt(pool, loss.entry, loss.attempt, loss.executor)
        if pool.holds():
            self.attempts.sweep(pool.name, pool.executors.lives)

    def _lost_attempt(
        self, pool: PoolQueue, entry: Entry, attempt: int, executor: str | None
    ) -> None:
        if pool.holds():
            self.attempts.lost(
                entry.work, entry.prompt_tokens, attempt, executor, pool.epoch, entry.leased_ms
            )

    def _is_over(self, request_id: str) -> bool:
        return self.closing.ended.knows(request_id) or self.admissions.given_up.knows(request_id)

    def _on_credit(self, msg: Msg) -> None:
        pool = self.board.on_credit(msg)
        if pool is not None:
            self.leasing.pump(pool)

    def _on_release(self, msg: Msg) -> None:
        release = Release.model_validate_json(msg.data)
        pool = self.pools.get(release.pool)
        if pool is not None and pool.holds():
            pool.give_back(release.executor, release.attempts)
            self._watch.look_at_lost(pool)

    def _kinds(self) -> list[Kind]:
        def heard_s(name: str) -> float:
            times = [each.heard_s(name) for each in self.board.executors.values()]
            return max(times, default=float("-inf"))

        return [
            Kind(
                knows=lambda name: any(e.lives(name) for e in self.board.executors.values()),
                heard_s=heard_s,
                subject=subjects.lease,
                lose=self.lose_executor,
            ),
            Kind(
                knows=self.board.egresses.knows,
                heard_s=self.board.egresses.heard_s,
                subject=subjects.session,
                lose=self.lose_egress,
            ),
        ]
