"""A running queueing service with a clock to turn, and its neighbours on a connection of their own."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from stages.queueing.clocks import Clocks
from stages.queueing.service import QueueingService
from stages.runtime.bus import Bus
from stages.runtime.launch import BusAddress
from tests.queueing.support import FakeClock, ScriptedEgress, ScriptedExecutor
from tests.support.nats import flushed
from tests.support.stages import context, topology


@pytest.fixture
def clock() -> FakeClock:
    """Moves only when told."""
    return FakeClock()


class Queueing:
    """Starts, kills and restarts the service, each time on a new connection."""

    def __init__(self, address: BusAddress, state: Path, clock: FakeClock) -> None:
        self._address, self._state = address, state
        self._clocks = Clocks(clock.now_s, clock.now_ms)
        self.plan = topology()

    async def start(self) -> QueueingService:
        self.bus = await Bus.connect(self._address, "queueing")
        self.service = QueueingService(
            context(self.bus, self._address, self._state, self.plan, "queueing"), self._clocks
        )
        await self.service.start()
        await flushed(self.bus)
        return self.service

    async def kill(self) -> None:
        """No farewell; what the service would do later does not happen."""
        assert self.service._watching is not None
        self.service._watching.cancel()
        await self.bus.client.close()


@pytest.fixture
async def queueing(
    bus_address: BusAddress, tmp_path: Path, clock: FakeClock
) -> AsyncIterator[Queueing]:
    """The service, started."""
    running = Queueing(bus_address, tmp_path, clock)
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
