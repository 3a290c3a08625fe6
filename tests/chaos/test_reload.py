"""topology.yaml is edited while 32 requests stream: nobody notices but the edited."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from stages.cli.bench.pipeline.site import Site
from stages.cli.rig import Rig, RigError
from stages.runtime.client import GrpcCaller
from tests.chaos.conftest import document, pids, until_billed, until_healthy
from tests.chaos.traffic import Traffic, asking
from tests.pipeline.conftest import eventually, rows
from tests.support.stages import key_hash

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

TOKENS = 160
STAYING = ("queueing-0", "queueing-1", "egress-0", "egress-1", "metering-0", "ingress-0")
Edit = Callable[[dict[str, Any]], None]


def executors(count: int) -> Edit:
    """Set both bounds."""

    def edit(topology: dict[str, Any]) -> None:
        topology["pools"]["small"]["executors"] = {"min": count, "max": count}

    return edit


def price(topology: dict[str, Any]) -> None:
    """Another price."""
    topology["pools"]["small"]["price"] = {"accelerator_hour": 0.5}


def bound(topology: dict[str, Any]) -> None:
    """Another bound of the queue."""
    topology["pools"]["small"]["queue"] = {"requests": 77}


def tenant(topology: dict[str, Any]) -> None:
    """One more tenant."""
    topology["tenants"]["fresh"] = {"keys": [key_hash("fresh-key")]}


def pool(topology: dict[str, Any]) -> None:
    """One more pool, reached by naming its model."""
    topology["models"]["twin"] = {"source": "smollm2-135m-instruct", "context": 1024}
    topology["pools"]["second"] = {"model": "twin", "threads": 1, "kv_tokens": 2048}


def write(rig: Rig, *edits: Edit) -> None:
    """Edit the file."""
    topology = document(rig)
    for edit in edits:
        edit(topology)
    rig.topology.write_text(json.dumps(topology, indent=1))


async def apply(rig: Rig, edit: Edit, shown: str) -> None:
    """Edit, see the plan, apply."""
    write(rig, edit)
    plan = await asyncio.to_thread(rig.headrace, "plan", "--json")
    assert shown in plan
    await asyncio.to_thread(rig.headrace, "apply", "--topology", str(rig.topology))


async def test_every_edit_is_taken_over_without_a_request_noticing(site: Site) -> None:
    rig = site.rig
    before = await asyncio.to_thread(pids, rig)
    traffic = Traffic()
    for number in range(32):
        traffic.send(site.doors[number % 2], asking(TOKENS, number))
    await eventually(lambda: rig.status()["conservation"]["running"] == 32, "32 running requests")
    for edit, shown in (
        (executors(1), "executors"),
        (price, "accelerator_hour"),
        (bound, "queue"),
        (tenant, "fresh"),
        (executors(2), "executors"),
        (pool, "second"),
    ):
        await apply(rig, edit, shown)
    after = await asyncio.to_thread(pids, rig)
    assert {name: after[name] for name in STAYING} == {name: before[name] for name in STAYING}
    await traffic.ended()
    assert traffic.faults(TOKENS) == {}
    await until_billed(rig, [each.record.request_id or "" for each in traffic.calls], TOKENS)
    await until_healthy(rig)
    await _serves_what_is_new(rig)


async def _serves_what_is_new(rig: Rig) -> None:
    traffic = Traffic()
    async with await GrpcCaller.connect(rig.grpc_address, "fresh-key") as fresh:
        traffic.send(fresh, asking(4).model_copy(update={"model": "twin"}))
        await traffic.ended()
    assert traffic.faults(4) == {}
    [call] = traffic.calls
    assert call.record.complete is not None
    assert call.record.complete.decision.pool == "second"
    [row] = await asyncio.to_thread(
        rows, rig, f"SELECT tenant FROM requests WHERE request_id = '{call.record.request_id}'"
    )
    assert row == {"tenant": "fresh"}


async def test_a_broken_edit_is_refused_whole(rig: Rig) -> None:
    generation = rig.status()["generation"]
    good = rig.topology.read_text()

    def broken(topology: dict[str, Any]) -> None:
        topology["pools"]["small"]["price"] = {"accelerator_hour": 9.0}
        topology["routes"] = [{"pool": "nowhere"}]

    write(rig, broken)
    with pytest.raises(RigError, match="nowhere"):
        rig.headrace("apply", "--topology", str(rig.topology))
    assert rig.status()["generation"] == generation
    rig.topology.write_text(good)


async def test_a_pool_whose_executor_cannot_start_is_rolled_back(site: Site) -> None:
    rig = site.rig
    generation = rig.status()["generation"]
    good = rig.topology.read_text()
    bad = rig.folder / "broken.gguf"
    bad.write_bytes(b"GGUF but no model")

    def missing(topology: dict[str, Any]) -> None:
        topology["models"]["bad"] = {"source": str(bad)}
        topology["pools"]["third"] = {"model": "bad", "kv_tokens": 2048}

    write(rig, missing)
    with pytest.raises(RigError, match=r"broken\.gguf"):
        await asyncio.to_thread(rig.headrace, "apply", "--topology", str(rig.topology))
    status = await asyncio.to_thread(rig.status)
    assert status["generation"] == generation
    assert not [one for one in status["executors"] if one["pool"] == "third"]
    rig.topology.write_text(good)
    traffic = Traffic()
    traffic.send(site.grpc, asking(4))
    await traffic.ended()
    assert traffic.faults(4) == {}
