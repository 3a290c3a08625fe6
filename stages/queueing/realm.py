"""The pools of this replica: taken, restored, served, given up; new ones come, removed ones go."""

import asyncio
import contextlib
import logging
from collections import defaultdict
from collections.abc import Mapping
from typing import Final

import nats.errors
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from pydantic import BaseModel

from contracts import subjects
from contracts.errors import ErrorCode, HeadraceError
from contracts.internal import AdmitReply, MoveCall, MoveReply, Work
from contracts.sessions import TakeReply, TakeSession
from contracts.topology import Topology
from stages.queueing.admission import Admissions
from stages.queueing.board import Board
from stages.queueing.clocks import Clocks
from stages.queueing.deliveries import Deliveries
from stages.queueing.owners import Owners
from stages.queueing.pool import PoolQueue
from stages.queueing.watch import Hands, Watch
from stages.runtime.bus import Bus

RESTORE_PAUSE_S: Final = 0.1
SETTLED_S: Final = 5.0

log = logging.getLogger("headrace.queueing")


class Realm:
    """Carries out what `Owners` decides (its `Owned`)."""

    def __init__(
        self,
        bus: Bus,
        clocks: Clocks,
        board: Board,
        hands: Hands,
        watch: Watch,
        admissions: Admissions,
    ) -> None:
        self._bus = bus
        self._clocks = clocks
        self._board = board
        self._hands = hands
        self._watch = watch
        self._admissions = admissions
        self._subscriptions: defaultdict[str, list[Subscription]] = defaultdict(list)
        self._admitting: dict[str, Subscription] = {}
        self._restoring: set[asyncio.Task[None]] = set()
        self._kept: dict[str, tuple[int, dict[str, int]]] = {}  # epoch and figures when dropped

    def begin(self, owners: Owners, topology: Topology) -> None:
        """Once, before anything else."""
        self._owners = owners
        self.topology = topology

    # What `Owners` calls

    def taken(self, pool: str, epoch: int, ended: Mapping[str, int]) -> None:
        """Ours from now on: restore it in the background."""
        kept_epoch, kept = self._kept.get(pool, (0, {}))
        section = self.topology.pools.get(pool)
        made = PoolQueue(
            pool,
            section or next(iter(self.topology.pools.values())),  # nothing is admitted by it
            gone=section is None,
            epoch=epoch,
            holds=lambda: self._owners.holds(pool, epoch),
            executors=self._board.executors[pool],
            ended=kept if kept_epoch == epoch - 1 else ended,
        )
        taking = asyncio.get_running_loop().create_task(self._take(made))
        self._restoring.add(taking)
        taking.add_done_callback(self._restoring.discard)

    def dropped(self, pool: str) -> None:
        """Not ours any more: nothing is known, heard or done in its name."""
        gone = self._board.pools.get(pool)
        if gone is not None:
            self._kept[pool] = (gone.epoch, gone.ledger.ended)
        deliveries = self._board.drop(pool)
        admitting = self._admitting.pop(pool, None)
        for subscription in [
            *self._subscriptions.pop(pool, []),
            *([admitting] if admitting else []),
        ]:
            self._bus.spawn(self._unsubscribe(subscription))
        if deliveries is not None:
            self._bus.spawn(self._close(deliveries))

    def ended(self, pool: str) -> Mapping[str, int] | None:
        """Of a pool that is served here."""
        ours = self._board.pools.get(pool)
        return ours.ledger.ended if ours is not None else None

    # What the service calls

    async def settled(self) -> None:
        """Wait until the pools that we own are served (5 s at most)."""
        if self._restoring:
            await asyncio.wait(set(self._restoring), timeout=SETTLED_S)

    def check(self, topology: Topology) -> None:
        """Raises conflict where a pool would go that holds requests."""
        for name, pool in self._board.pools.items():
            if name in topology.pools or name not in self.topology.pools or not len(pool.ledger):
                continue
            figures = pool.ledger.counters()
            raise HeadraceError(
                ErrorCode.CONFLICT,
                f"pool {name!r} cannot go: {figures['running']:.0f} requests run and "
                f"{figures['queued']:.0f} wait in it; wait until they have ended, or move those that "
                f"wait with `headrace move`",
                field=f"pools.{name}",
            )

    async def reconfigure(self, topology: Topology) -> None:
        """New pools are owned as soon as they are free; removed ones admit nothing more."""
        self.topology = topology
        self._owners.want(set(topology.pools))
        for name, pool in list(self._board.pools.items()):
            section = topology.pools.get(name)
            pool.gone = section is None
            if section is not None:
                pool.reconfigure(section)
                await self._admit(pool)
            elif name in self._admitting:
                await self._unsubscribe(self._admitting.pop(name))
            self._hands.leasing.pump(pool)
        await self._owners.round()
        await self.settled()

    async def stop_admissions(self) -> None:
        """Those that came in are still answered."""
        for subscription in list(self._admitting.values()):
            await subscription.drain()  # type: ignore[no-untyped-call]  # nats-py's is unannotated

    def detail(self) -> dict[str, str]:
        """A line for each pool."""
        lines = {}
        for name in sorted({*self.topology.pools, *self._board.pools}):
            pool = self._board.pools.get(name)
            standing = self._owners.standing(name)
            if pool is not None:
                lines[f"pool.{name}"] = f"owner epoch {pool.epoch}: {pool.detail()}"
            elif standing is not None and standing.epoch:
                lines[f"pool.{name}"] = f"owner epoch {standing.epoch}: reads what is stored"
            elif standing is not None and standing.owner:
                owner, epoch = standing.owner, standing.seen_epoch
                lines[f"pool.{name}"] = f"standby: {owner} owns it in epoch {epoch}"
            else:
                lines[f"pool.{name}"] = "standby: nobody owns it"
        return lines

    async def _take(self, pool: PoolQueue) -> None:
        try:
            await self._restore(pool)
        except Exception:
            log.exception("pool %s could not be taken over and is given up", pool.name)
            if pool.holds():
                await self._owners.release(pool.name)

    async def _restore(self, pool: PoolQueue) -> None:
        """From the record to the first lease."""
        deliveries = Deliveries(self._bus, pool.name, pool.epoch, pool.holds, self._clocks.lease_s)
        while pool.holds():
            try:
                await self._hands.takeover.restore(pool, deliveries)
                break
            except (OSError, TimeoutError, nats.errors.Error) as error:
                log.warning("taking over pool %s: %r; again", pool.name, error)
                await asyncio.sleep(RESTORE_PAUSE_S)
        if not pool.holds():
            await self._close(deliveries)
            return
        pool.adopting = True
        self._board.put(pool, deliveries)
        self._bus.spawn(self._adopt(pool))
        await self._serve(pool)

    async def _adopt(self, pool: PoolQueue) -> None:
        try:
            await self._hands.takeover.find_running(pool)
        except (OSError, TimeoutError, nats.errors.Error) as error:
            log.warning("what runs in pool %s is not known: %r", pool.name, error)
        finally:
            pool.adopting = False
        self._hands.arrivals.tell_again(pool)
        self._watch.look_at_lost(pool)
        self._hands.leasing.pump(pool)

    async def _serve(self, pool: PoolQueue) -> None:
        async def take(call: TakeSession, msg: Msg) -> TakeReply | None:
            return await self._hands.homes.take(pool, call, msg)

        async def move(call: MoveCall, msg: Msg) -> MoveReply | None:
            return await self._hands.moves.move(pool, call, msg)

        async def arrive(work: Work, msg: Msg) -> AdmitReply | None:
            return await self._hands.arrivals.arrive(pool, work, msg)

        await self._admit(pool)
        name = pool.name
        await self._keep(pool, await self._bus.serve(subjects.take(name), TakeSession, take))
        await self._keep(pool, await self._bus.serve(subjects.move(name), MoveCall, move))
        await self._keep(pool, await self._bus.serve(subjects.moved(name), Work, arrive))

    async def _admit(self, pool: PoolQueue) -> None:
        """No queue group: an owner before us that stands still would get its share."""
        if pool.gone or pool.name in self._admitting:
            return

        async def admit(work: Work, msg: Msg) -> BaseModel | None:
            return await self._admissions.admit(pool, work, msg)

        made = await self._bus.serve(subjects.admit(pool.name), Work, admit)
        if self._board.pools.get(pool.name) is pool:
            self._admitting[pool.name] = made
        else:
            await self._unsubscribe(made)

    async def _keep(self, pool: PoolQueue, subscription: Subscription) -> None:
        if self._board.pools.get(pool.name) is pool:
            self._subscriptions[pool.name].append(subscription)
        else:
            await self._unsubscribe(subscription)

    async def _unsubscribe(self, subscription: Subscription) -> None:
        with contextlib.suppress(nats.errors.BadSubscriptionError):  # drained already
            if not self._bus.client.is_closed:
                await subscription.unsubscribe()

    async def _close(self, deliveries: Deliveries) -> None:
        await deliveries.close()
