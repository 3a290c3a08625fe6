"""kill -9 of each process in turn under 16 running requests: no request is lost, none repeats."""

import asyncio
import os
import signal

import pytest

from stages.cli.bench.pipeline.site import Site
from stages.cli.rig import Rig
from tests.chaos.conftest import pids, until_billed, until_healthy
from tests.chaos.traffic import Traffic, asking
from tests.pipeline.conftest import eventually, rows

# nats-py leaves a socket of a failed reconnection to the garbage collector, which complains.
IGNORED = "ignore::pytest.PytestUnraisableExceptionWarning"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings(IGNORED),
]

TOKENS = 100
CHILDREN = ("nats-server", "ingress-0", "routing-0", "egress-0", "small-0", "metering-0")


def owner(rig: Rig) -> str:
    """The queueing process that owns the pool."""
    [queue] = [one for one in rig.status()["queues"] if one["pool"] == "small"]
    return str(queue["owner"]).rpartition("-")[0]


def pid_of(rig: Rig, name: str) -> int:
    """A process by its part in the pipeline."""
    if name == "control":
        return int(rig.status()["pid"])
    if name == "watchdog":
        return int(rig.status()["watchdog"]["pid"])
    return pids(rig)[owner(rig) if name == "queueing" else name]


@pytest.mark.parametrize("name", [*CHILDREN, "queueing", "control", "watchdog"])
async def test_no_request_is_lost(site: Site, name: str) -> None:
    rig = site.rig
    await until_healthy(rig)
    before = await asyncio.to_thread(pids, rig)
    pid = await asyncio.to_thread(pid_of, rig, name)
    traffic = Traffic()
    for number in range(16):
        traffic.send(site.doors[number % 2], asking(TOKENS, number))
    await eventually(lambda: all(each.started for each in traffic.calls), "16 running requests")
    os.kill(pid, signal.SIGKILL)
    for number in range(4):  # callers that come while it is away
        key = {"idempotency_key": f"{name}-{number}"}  # so that a broken call may be made again
        traffic.send(site.doors[number % 2], asking(TOKENS, 16 + number).model_copy(update=key))
    await traffic.ended()
    assert traffic.faults(TOKENS) == {}
    await until_healthy(rig)
    assert await asyncio.to_thread(pid_of, rig, name) != pid
    if name in ("control", "watchdog"):
        assert await asyncio.to_thread(pids, rig) == before, "running children are adopted"
    await until_billed(rig, [each.record.request_id or "" for each in traffic.calls], TOKENS)
    await _attempts_are_exact(rig)


async def _attempts_are_exact(rig: Rig) -> None:
    """Each attempt up to the delivering one has one closed row; those rows cover what was delivered."""
    query = """
        SELECT count(*) AS n FROM receipts LEFT JOIN (
            SELECT request_id, count(*) AS attempts, max(attempt) AS last,
                sum(completion_tokens) AS sampled
            FROM closed_attempts GROUP BY request_id
        ) AS taken USING (request_id)
        WHERE taken.attempts IS DISTINCT FROM taken.last OR taken.last < receipts.attempt
            OR taken.sampled IS NULL
    """
    await eventually(lambda: rows(rig, query) == [{"n": 0}], "every attempt closed once")
