"""nats-server as `headrace up` configures it, on a free port, for tests of permissions."""

import asyncio
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from contracts.topology import Topology
from stages.control.natsd import NatsServer
from stages.control.state import StateFolder
from stages.ingress.service import IngressService
from stages.runtime.bus import Bus
from tests.support.stages import context, topology
from tests.support.topologies import free_port
from tests.support.waiting import LIMIT_S

LOG = "nats-server.log"


def guarded_topology(**changes: object) -> Topology:
    """The tests' topology on a free port."""
    return topology(bus={"port": free_port()}, **changes)


@asynccontextmanager
async def guarded(folder: Path, plan: Topology) -> AsyncIterator[NatsServer]:
    """The running server; its log is `folder/nats-server.log`."""
    state = StateFolder(folder / "state")
    state.make()
    server = NatsServer(state, plan)
    with (folder / LOG).open("ab") as log:
        process = subprocess.Popen(server.command(), stdout=log, stderr=log)
    try:
        await asyncio.wait_for(server.ready(), LIMIT_S)
        yield server
    finally:
        process.terminate()
        await asyncio.to_thread(process.wait, LIMIT_S)


@asynccontextmanager
async def guarding_ingress(
    server: NatsServer, folder: Path, plan: Topology
) -> AsyncIterator[IngressService]:
    """An ingress that answers the auth callout."""
    address = server.address_of("ingress")
    bus = await Bus.connect(address, "ingress-0-test")
    service = IngressService(context(bus, address, folder, plan, "ingress"))
    try:
        await service.start()
        await bus.flush()
        yield service
        await service.drain()
    finally:
        await bus.close()
