"""An active and a standby replica on a real bus: who owns the queue changes, no request does."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path
from typing import Any

import pytest

from contracts import subjects
from contracts.client import FinishReason
from contracts.internal import Lease
from stages.queueing.service import QueueingService
from stages.runtime.bus import Bus
from stages.runtime.launch import BusAddress
from tests.queueing.support import (
    ScriptedEgress,
    ScriptedExecutor,
    admit,
    make_work,
    receipts,
    until,
)
from tests.support.nats import flushed
from tests.support.stages import context, topology


class Pair:
    """Two replicas, a first."""

    def __init__(self, address: BusAddress, state: Path) -> None:
        self._address, self._state = address, state
        self.buses: dict[str, Bus] = {}
        self.services: dict[str, QueueingService] = {}

    async def start(self, name: str) -> QueueingService:
        bus = await Bus.connect(self._address, name)
        made = context(bus, self._address, self._state, topology(), "queueing", name)
        service = QueueingService(made)
        self.buses[name], self.services[name] = bus, service
        await service.start()
        await flushed(bus)
        return service

    async def kill(self, name: str) -> None:
        """No farewell, nothing it would do later."""
        await self.services.pop(name).kill()
        await self.buses[name].client.close()

    def total(self, figure: str) -> float:
        """As `headrace status` adds it up."""
        return sum(service.counters()[figure] for service in self.services.values())

    def owns(self, name: str) -> bool:
        """Whether it serves pool p."""
        pool = self.services[name].pools.get("p")
        return pool is not None and pool.holds()

    async def close(self) -> None:
        for name in list(self.services):
            await self.kill(name)


@pytest.fixture
async def pair(bus_address: BusAddress, tmp_path: Path) -> AsyncIterator[Pair]:
    made = Pair(bus_address, tmp_path)
    await made.start("a")
    await made.start("b")
    yield made
    await made.close()


@pytest.fixture
async def executor(bus: Bus, pair: Pair) -> ScriptedExecutor:
    made = ScriptedExecutor(bus)
    await made.start()
    return made


@pytest.fixture
async def egress(bus: Bus, pair: Pair) -> ScriptedEgress:
    made = ScriptedEgress(bus)
    await made.start()
    bus.spawn(made.keep_beating())
    return made


async def stored(bus: Bus) -> int:
    return int((await bus.js.stream_info(subjects.QUEUE_STREAM)).state.messages)


async def nothing_stored(bus: Bus) -> None:
    async with asyncio.timeout(30):
        while await stored(bus):
            await asyncio.sleep(0.02)


def balanced(pair: Pair) -> bool:
    ends = sum(pair.total(name) for name in ("finished", "cancelled", "failed", "expired"))
    return pair.total("accepted") == ends + pair.total("running") + pair.total("queued")


async def watched(pair: Pair, work: Coroutine[Any, Any, None]) -> None:
    """Do something while the figures balance at every moment."""
    task = asyncio.ensure_future(work)
    while not task.done():
        assert balanced(pair)
        await asyncio.sleep(0.005)
    await task


def leases_of(executor: ScriptedExecutor) -> list[Lease]:
    return [executor.leases.get_nowait() for _ in range(executor.leases.qsize())]


async def test_a_killed_owner_is_replaced_and_what_runs_goes_on(
    bus: Bus, pair: Pair, executor: ScriptedExecutor, egress: ScriptedEgress
) -> None:
    works = [make_work() for _ in range(6)]
    egress.knows(*works)
    for work in works:
        await admit(bus, work)
    await until(lambda: pair.total("running") == 2)
    first = [(await executor.next_lease()).work.request_id for _ in range(2)]
    done, runs = first
    await egress.end(next(w for w in works if w.request_id == done), FinishReason.STOP)
    await executor.finish(done)
    third = (await executor.next_lease()).work.request_id
    await until(lambda: pair.total("running") == 2)
    await asyncio.sleep(0.6)  # the figures are in the record
    assert not pair.owns("b")
    await pair.kill("a")

    async def taken() -> None:
        await until(lambda: pair.total("running") == 2 and pair.total("queued") == 3, 30)

    await watched(pair, taken())
    assert (pair.total("accepted"), pair.total("finished")) == (6, 1)
    assert leases_of(executor) == []
    assert set(executor.running) == {runs, third}
    late = make_work()
    egress.knows(late)
    works.append(late)
    await admit(bus, late)
    for name in (runs, third):
        await egress.end(next(w for w in works if w.request_id == name), FinishReason.STOP)
        await executor.finish(name)
    leased = set()
    for _ in range(4):
        lease = await executor.next_lease()
        leased.add(lease.work.request_id)
        assert lease.epoch > 1
        assert lease.attempt == 1  # none of them has run: every executor has told
        await egress.end(lease.work, FinishReason.STOP)
        await executor.finish(lease.work.request_id)
    assert leased == {w.request_id for w in works} - {done, runs, third}
    await until(lambda: pair.total("finished") == 7)
    await nothing_stored(bus)
    assert len(await receipts(bus)) == 7


async def test_the_late_acts_of_an_owner_that_stood_still_change_nothing(
    bus: Bus, pair: Pair, executor: ScriptedExecutor, egress: ScriptedEgress
) -> None:
    works = [make_work() for _ in range(4)]
    egress.knows(*works)
    for work in works:
        await admit(bus, work)
    await until(lambda: pair.total("running") == 2)
    leases_of(executor)
    old = pair.services["a"].board
    pool, deliveries = old.pools["p"], old.deliveries["p"]
    pair.services["a"].owners.frozen = True
    await until(lambda: pair.owns("b"), 30)
    await until(lambda: pair.services["b"].counters()["queued"] == 2)
    assert not pool.holds()
    pair.services["a"].owners.frozen = False
    await until(lambda: "p" not in old.pools)  # it has noticed, and dropped everything
    assert not deliveries._holds()

    pool.holds = lambda: True  # type: ignore[method-assign]  # as if it had asked before it stood still
    deliveries._holds = pool.holds
    for entry in pool.ledger:
        deliveries.finish(entry.stream_seq)
    await pair.buses["a"].settle(10)
    assert deliveries.stale  # its consumer is gone
    assert await stored(bus) == 4
    executor.slots = 4
    pool.adopting = pair.services["a"].leasing.paused = False
    pool.hear(executor.credit(), old._clocks.now_s())
    pair.services["a"].leasing.pump(pool)  # it would lease what waits
    refused = await asyncio.wait_for(executor.refused.get(), 20)
    assert refused.epoch == 1
    await executor.speak()
    for _ in range(2):
        assert (await executor.next_lease()).epoch > 1
    assert len(executor.running) == 4


async def test_a_drained_owner_hands_over_at_once(
    bus: Bus, pair: Pair, executor: ScriptedExecutor, egress: ScriptedEgress
) -> None:
    work = make_work()
    egress.knows(work)
    await admit(bus, work)
    await until(lambda: pair.total("running") == 1)
    await pair.services["a"].drain()
    assert pair.services["a"].pools == {}
    await until(lambda: pair.owns("b") and pair.total("running") == 1, 30)
    assert pair.services["a"].counters()["accepted"] == 0
    assert len(leases_of(executor)) == 1
    await egress.end(work, FinishReason.STOP)
    await until(lambda: pair.total("finished") == 1)
    await nothing_stored(bus)


async def test_the_beat_says_who_owns_a_pool(pair: Pair) -> None:
    assert pair.services["a"].detail()["pool.p"].startswith("owner epoch ")
    await until(lambda: "queueing-0-a" in pair.services["b"].detail()["pool.p"], 30)
    assert pair.services["b"].detail()["pool.p"].startswith("standby: ")
