"""An executor on a real bus, and what it says."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from contracts import subjects
from contracts.frames import LEASE_REPLY_DECODER, Credit, LeaseReply, TokenItem
from contracts.internal import Lease
from contracts.topology import Topology
from stages.runtime.bus import Bus
from stages.runtime.clock import now_ms
from stages.runtime.launch import BusAddress, Launch
from tests.gpu_worker.test_roster import lease as make_lease

ME: Final = "small-0-test"


class Watch:
    """Everything the executor says."""

    def __init__(self) -> None:
        self.items: list[TokenItem] = []
        self.credits: list[Credit] = []

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait at most 30 s."""
        async with asyncio.timeout(30):
            while not condition():
                await asyncio.sleep(0.005)

    def finish(self, request_id: str) -> str | None:
        """How the request ended, as the frames say."""
        return next((i.finish for i in self.items if i.request_id == request_id and i.finish), None)


def topology(folder: Path) -> Topology:
    """One pool of a tiny model, two slots."""
    pool = {"model": "tiny", "slots": 2, "kv_tokens": 1024, "threads": 1}
    return Topology.model_validate(
        {
            "version": 1,
            "models": {"tiny": {"source": str(folder), "context": 512}},
            "pools": {"small": {**pool, "price": {"accelerator_hour": 3.6}}},
            "routes": [{"pool": "small"}],
            "tenants": {"demo": {"keys": ["sha256:" + "0" * 64]}},
        }
    )


def launch_file(state: Path, address: BusAddress) -> Launch:
    """What control would tell the executor."""
    return Launch(
        stage="gpu_worker",
        instance="small-0",
        incarnation=ME,
        bus=address,
        state=state,
        spawned_ms=now_ms(),
        pool="small",
    )


async def give(bus: Bus, lease: Lease) -> LeaseReply:
    """Hand the executor a lease."""
    return LEASE_REPLY_DECODER.decode(await bus.request_bytes(subjects.lease(ME), lease, 5.0))


def endless(request_id: str, **more: Any) -> Lease:
    """A request that runs for 200 tokens: 2 s with slow steps."""
    lease = make_lease(request_id, tokens=8)
    work = lease.work.model_copy(update={"max_tokens": 200, "ignore_eos": True, **more})
    return lease.model_copy(update={"work": work})
