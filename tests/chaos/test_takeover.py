"""The owner of a queue dies, or only stands still: its standby goes on with what runs and waits."""

import asyncio
import os
import signal

import pytest

from stages.cli.bench.pipeline.site import Site
from stages.cli.rig import Rig
from tests.chaos.conftest import pids, until_billed, until_healthy
from tests.chaos.test_kills import owner
from tests.chaos.traffic import Traffic, asking
from tests.pipeline.conftest import eventually, rows

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

TOKENS = 100


def attempts(rig: Rig, traffic: Traffic) -> int:
    """Attempts that the calls took, all together."""
    listed = ", ".join(f"'{each.record.request_id}'" for each in traffic.calls)
    query = f"SELECT count(*) AS n FROM closed_attempts WHERE request_id IN ({listed})"
    return int(rows(rig, query)[0]["n"])


async def sixteen_and_thirty(site: Site, slots: int) -> Traffic:
    """Fill every slot, and thirty more."""
    traffic = Traffic()
    for number in range(slots + 30):
        traffic.send(site.doors[number % 2], asking(TOKENS, number))

    def full() -> bool:
        law = site.rig.status()["conservation"]
        return bool(law["running"] == slots and law["queued"] == 30)

    await eventually(full, f"{slots} running and 30 queued")
    return traffic


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
async def test_nothing_is_lost_and_nothing_that_runs_is_run_again(
    site: Site, number: signal.Signals
) -> None:
    rig = site.rig
    await until_healthy(rig)
    name = await asyncio.to_thread(owner, rig)
    pid = (await asyncio.to_thread(pids, rig))[name]
    traffic = await sixteen_and_thirty(site, slots=32)
    os.kill(pid, number)
    try:
        await eventually(lambda: _owned_by_another(rig, name), "another owner")
    finally:
        if number is signal.SIGSTOP:
            os.kill(pid, signal.SIGCONT)  # its late words must do no harm
    await traffic.ended(180)
    assert traffic.faults(TOKENS) == {}
    await until_billed(rig, [each.record.request_id or "" for each in traffic.calls], TOKENS)
    assert await asyncio.to_thread(attempts, rig, traffic) == len(traffic.calls)
    await until_healthy(rig)


def _owned_by_another(rig: Rig, name: str) -> bool:
    return owner(rig) not in ("", name)
