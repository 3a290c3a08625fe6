"""All processes, the real model, real NATS and DuckDB: one pipeline for this folder's tests."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from stages.cli.bench.pipeline.site import Site, open_site
from stages.cli.rig import Rig, private_pipeline

WAIT_S = 60.0


@pytest.fixture(scope="session")
def rig() -> Iterator[Rig]:
    """A running pipeline on free ports."""
    with private_pipeline() as running:
        yield running
        running.down()
        assert denied(running) == []


def denied(rig: Rig) -> list[str]:
    """What nats-server has refused to our own processes: their permissions must be just enough."""
    log = (rig.state / "logs" / "nats-server.log").read_text()
    return [one for one in log.splitlines() if "Violation" in one and "user:hr." in one]


@pytest.fixture
async def site(rig: Rig) -> AsyncIterator[Site]:
    """Callers on both doors."""
    async with open_site(rig, seed=5) as opened:
        yield opened


def rows(rig: Rig, query: str) -> list[dict[str, Any]]:
    """What `headrace sql` answers."""
    found: list[dict[str, Any]] = json.loads(rig.headrace("sql", query, "--json"))
    return found


def receipt(rig: Rig, request_id: str) -> dict[str, Any]:
    """The one usage row of a request (a receipt is stored before the client hears the end)."""
    query = f"SELECT * FROM requests WHERE request_id = '{request_id}'"
    [row] = rows(rig, query)
    return row


async def eventually(condition: Callable[[], bool], what: str) -> None:
    """Wait at most a minute for something that other processes bring about."""
    for _ in range(int(WAIT_S / 0.2)):
        if await asyncio.to_thread(condition):
            return
        await asyncio.sleep(0.2)
    raise AssertionError(f"after {WAIT_S:.0f} s still not: {what}")
