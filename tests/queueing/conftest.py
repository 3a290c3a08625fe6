"""A running queueing service with a clock to turn, and its neighbours on a connection of their own."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path
from typing import Any

import pytest

from contracts.topology import Topology
from stages.queueing.clocks import Clocks
from stages.queueing.ownership import Timing
from stages.queueing.service import QueueingService
from stages.runtime.bus import Bus
from stages.runtime.launch import BusAddress
from tests.queueing.support import FakeClock, ScriptedEgress, ScriptedExecutor
from tests.support.nats import flushed
from tests.support.stages import context, topology

# A slow machine does not lose its pools; what is lost in time is tested in test_takeover.py.
PATIENT = Timing(valid_s=30.0, free_s=60.0)


@pytest.fixture
def clock() -> FakeClock:
    """Moves only when told."""
    return FakeClock()


class Queueing:
    """Starts, kills and restarts the service, each time on a new connection.

    The rounds of its watch are ours: its own would take a slow machine for a process that stood still.
    """

    def __init__(self, address: BusAddress, state: Path, clock: FakeClock) -> None:
        self._address, self._state = address, state
        self._clock = clock
        self._clocks = Clocks(clock.now_s, clock.now_ms)
        self._one_round = asyncio.Lock()
        self.plan = topology()

    async def start(self) -> QueueingService:
        self.bus = await Bus.connect(self._address, "queueing")
        made = context(self.bus, self._address, self._state, self.plan, "queueing")
        self.service = QueueingService(made, self._clocks, PATIENT)
        await self.service.start()
        await flushed(self.bus)
        self._watch(self._rounds())
        return self.service

    async def kill(self) -> None:
        """No farewell; what the service would do later does not happen."""
        await self.service.kill()
        await self.bus.client.close()

    def watch_itself(self) -> None:
        """With its own rounds, as in production."""
        self._watch(self.service._watch.run())

    async def pass_time(self, seconds: float, *alive: ScriptedExecutor | ScriptedEgress) -> None:
        """In half seconds, each heard of by the service, with a round of its watch."""
        for _ in range(round(seconds * 2)):
            self._clock.seconds += 0.5
            for one in alive:
                await (one.speak() if isinstance(one, ScriptedExecutor) else one.beat())
            await flushed(self.bus)
            await asyncio.sleep(0.02)  # what was received is read
            await self._round()

    def _watch(self, rounds: Coroutine[Any, Any, None]) -> None:
        if self.service._watching is not None:
            self.service._watching.cancel()
        self.service._watching = asyncio.get_running_loop().create_task(rounds)

    async def _rounds(self) -> None:
        while True:
            await asyncio.sleep(0.1)
            await self._round()

    async def _round(self) -> None:
        async with self._one_round:
            await self.service._watch.tick()
            await asyncio.sleep(0)  # what it spawned begins


@pytest.fixture
def plan() -> Topology | None:
    """The topology that the service runs; None = the usual one."""
    return None


@pytest.fixture
async def queueing(
    bus_address: BusAddress, tmp_path: Path, clock: FakeClock, plan: Topology | None
) -> AsyncIterator[Queueing]:
    """The service, started."""
    running = Queueing(bus_address, tmp_path, clock)
    if plan is not None:
        running.plan = plan
    await running.start()
    yield running
    if running.bus.client.is_connected:
        await running.service.drain()
        await running.bus.close()


@pytest.fixture
async def executor(bus: Bus, queueing: Queueing) -> ScriptedExecutor:
    """Two slots in pool p."""
    made = ScriptedExecutor(bus)
    await made.start()
    return made


@pytest.fixture
async def egress(bus: Bus, queueing: Queueing) -> ScriptedEgress:
    """The egress named in the requests."""
    made = ScriptedEgress(bus)
    await made.start()
    return made
