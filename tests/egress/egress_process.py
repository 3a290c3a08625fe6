"""An egress whose model spells letters, as a process that can be killed: `python -m … NAME BUS GRPC`."""

import asyncio
import sys
from pathlib import Path

from stages.egress import service as egress_service
from stages.egress.service import EgressService
from stages.runtime.bus import Bus
from stages.runtime.clock import now_ms
from stages.runtime.launch import BusAddress, Launch
from stages.runtime.stage import Context
from tests.egress.builders import Letters, make_topology


async def run(name: str, bus: BusAddress, grpc: str) -> None:
    """Serve until killed."""
    egress_service._tokenizer = lambda _: None  # type: ignore[assignment, return-value]
    egress_service.TextStream = lambda _: Letters()  # type: ignore[assignment, misc]
    launch = Launch(
        stage="egress",
        instance="egress-0",
        incarnation=name,
        bus=bus,
        state=Path.cwd(),
        spawned_ms=now_ms(),
    )
    own = await Bus.connect(bus, name)
    service = EgressService(Context(launch, own, make_topology(grpc), 3))
    await service.start()
    await own.flush()
    print("ready", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(run(sys.argv[1], BusAddress.model_validate_json(sys.argv[2]), sys.argv[3]))
