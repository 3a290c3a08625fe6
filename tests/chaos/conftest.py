"""A pipeline with a second one of everything, which these tests change and break."""

import json
from collections.abc import AsyncIterator, Iterator
from hashlib import sha256
from typing import Any

import pytest

from stages.cli.bench.pipeline.site import Site, open_site
from stages.cli.rig import Rig, RigError, default_topology, private_pipeline
from tests.pipeline.conftest import eventually, rows

OTHER, OTHER_KEY = "other", "headrace-other-key"


def doubled() -> dict[str, Any]:
    """Two executors of one thread, two egresses, an owner and a standby, two tenants."""
    topology = default_topology()
    topology["pools"]["small"] |= {"executors": {"min": 2, "max": 2}, "threads": 1}
    topology["pools"]["small"]["kv_tokens"] = 16384
    topology["tenants"][OTHER] = {"keys": ["sha256:" + sha256(OTHER_KEY.encode()).hexdigest()]}
    topology["stages"] = {"egress": {"replicas": 2}, "queueing": {"replicas": 2}}
    return topology


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    """One pipeline a file."""
    with private_pipeline(doubled()) as running:
        yield running


@pytest.fixture
async def site(rig: Rig) -> AsyncIterator[Site]:
    """Callers on both doors."""
    async with open_site(rig, seed=9) as opened:
        yield opened


def document(rig: Rig) -> dict[str, Any]:
    """The topology file."""
    found: dict[str, Any] = json.loads(rig.topology.read_text())
    return found


def pids(rig: Rig) -> dict[str, int]:
    """By instance, nats-server included."""
    status = rig.status()
    return {
        one["instance"]: one["pid"]
        for one in (*status["stages"], *status["executors"], status["bus"])
    }


async def until_healthy(rig: Rig) -> None:
    """Every process is ready and the law balances."""

    def well() -> bool:
        try:
            return bool(rig.status()["healthy"])
        except RigError:  # nothing answers yet
            return False

    await eventually(well, "health")


async def until_billed(rig: Rig, request_ids: list[str], tokens: int) -> None:
    """Each request has one receipt with `tokens` tokens, and each attempt one closed row."""
    listed = ", ".join(f"'{one}'" for one in request_ids)
    query = (
        "SELECT request_id, completion_tokens AS tokens, finish_reason AS finish FROM requests "
        f"WHERE request_id IN ({listed}) ORDER BY request_id"
    )
    wanted = [
        {"request_id": one, "tokens": tokens, "finish": "length"} for one in sorted(request_ids)
    ]
    await eventually(
        lambda: rows(rig, query) == wanted, f"{len(wanted)} receipts of {tokens} tokens"
    )
