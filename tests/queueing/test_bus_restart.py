"""nats-server is killed and comes back: owners stay, what runs goes on, nothing is counted twice."""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from contracts import subjects
from contracts.client import FinishReason
from stages.queueing.pool import PoolQueue
from stages.queueing.service import QueueingService
from stages.runtime.bus import Bus
from tests.queueing.support import ScriptedEgress, ScriptedExecutor, admit, make_work, until
from tests.support.nats import NatsServer, flushed
from tests.support.stages import context, topology


class Site:
    """Two replicas and their neighbours on a server of their own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.server = NatsServer(folder)
        self.buses: list[Bus] = []
        self.services: list[QueueingService] = []

    async def connect(self, name: str) -> Bus:
        self.buses.append(await Bus.connect(self.server.address, name))
        return self.buses[-1]

    async def start(self) -> None:
        self.bus = await self.connect("test")
        for name in ("a", "b"):
            bus = await self.connect(name)
            made = context(bus, self.server.address, self._folder, topology(), "queueing", name)
            self.services.append(QueueingService(made))
            await self.services[-1].start()
            await flushed(bus)
        self.executor, self.egress = ScriptedExecutor(self.bus), ScriptedEgress(self.bus)
        await self.executor.start()
        await self.egress.start()

    def restart(self, away_s: float) -> None:
        port = int(self.server.address.url.rpartition(":")[2])
        self.server.kill()
        time.sleep(away_s)
        self.server = NatsServer(self._folder, port)

    def pools(self, name: str) -> list[PoolQueue]:
        return [service.pools[name] for service in self.services if name in service.pools]

    def total(self, figure: str) -> float:
        return sum(service.counters()[figure] for service in self.services)

    async def close(self) -> None:
        for service in self.services:
            await service.kill()
        for bus in self.buses:
            await bus.client.close()
        self.server.stop()


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    made = Site(tmp_path)
    await made.start()
    yield made
    await made.close()


@pytest.mark.parametrize("away_s", [0.0, 1.2])  # longer than an owner may act without a renewal
async def test_what_runs_and_waits_outlives_the_server(site: Site, away_s: float) -> None:
    works = [make_work(deadline_ms=2**52) for _ in range(3)]
    site.egress.knows(*works)
    for work in works:
        await admit(site.bus, work)
    await until(lambda: site.total("running") == 2)
    before = dict(site.executor.running)
    for _ in range(2):
        await site.executor.next_lease()
    await asyncio.to_thread(site.restart, away_s)
    site.bus.spawn(site.egress.keep_beating())
    await until(lambda: site.bus.client.is_connected, 30)
    await until(lambda: site.total("running") == 2 and site.total("queued") == 1, 30)
    late = make_work(deadline_ms=2**52)
    site.egress.knows(late)
    works.append(late)

    async def admitted() -> None:
        while True:
            try:
                await admit(site.bus, late)
            except Exception:  # noqa: BLE001 - as ingress does, until somebody answers
                await asyncio.sleep(0.1)
            else:
                return

    await asyncio.wait_for(admitted(), 30)
    await until(lambda: site.total("queued") == 2, 30)
    assert site.executor.running == before
    assert site.executor.leases.empty()
    by_id = {work.request_id: work for work in works}
    ended = 0
    while ended < 4:
        for name in list(site.executor.running):
            await site.egress.end(by_id.pop(name), FinishReason.STOP)
            await site.executor.finish(name)
            ended += 1
        await asyncio.sleep(0.05)
    await until(lambda: site.total("finished") == 4, 30)
    assert site.total("accepted") == 4
    async with asyncio.timeout(30):
        while (await site.bus.js.stream_info(subjects.QUEUE_STREAM)).state.messages:
            await asyncio.sleep(0.05)


async def test_what_runs_at_an_executor_that_comes_back_late_is_not_leased_again(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stages.queueing.takeover.INVENTORY_S", 0.0)
    monkeypatch.setattr("stages.queueing.takeover.CALM_S", 30.0)
    works = [make_work(deadline_ms=2**52) for _ in range(2)]
    site.egress.knows(*works)
    for work in works:
        await admit(site.bus, work)
        await site.executor.next_lease()
    await until(lambda: site.total("running") == 2)
    before = dict(site.executor.running)
    site.executor.away = site.executor.silent = True
    await asyncio.to_thread(site.restart, 1.2)
    site.bus.spawn(site.egress.keep_beating())

    def taken() -> bool:
        return any(pool.holds() and pool.epoch > 1 for pool in site.pools("p"))

    await until(taken, 30)
    await asyncio.sleep(0.5)
    assert site.executor.leases.empty()
    site.executor.away = site.executor.silent = False
    await until(lambda: site.total("running") == 2, 30)
    assert (site.executor.running, site.executor.leases.empty()) == (before, True)
