"""kill -9 of each process while a request runs: it ends as it should, and the service goes on."""

import asyncio
import os
import signal
from collections.abc import Iterator
from contextlib import aclosing

import pytest

from contracts.client import Chunk, Complete, FinishReason, GenerateRequest
from stages.cli.bench.calls import Record, run_call
from stages.cli.bench.pipeline.site import Site, open_site
from stages.cli.rig import Rig, private_pipeline
from stages.runtime.client import CannotConnect
from tests.pipeline.conftest import eventually, rows

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

REQUEST = GenerateRequest(
    prompt="The history of the water wheel begins", max_tokens=120, temperature=0.0,
    ignore_eos=True, token_ids=True,
)  # fmt: skip


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    """A pipeline of its own: these tests break it."""
    with private_pipeline() as running:
        yield running


def pid_of(rig: Rig, stage: str) -> int:
    """The process to kill."""
    status = rig.status()
    found = [*status["stages"], *status["executors"], status["bus"]]
    [pid] = [one["pid"] for one in found if stage in (one["stage"], one["instance"])]
    return int(pid)


async def killed_while_running(site: Site, stage: str) -> Record:
    """Kill a stage after ten tokens of a request on the gRPC door; the request's own record."""
    record = asyncio.create_task(run_call(site.grpc, REQUEST))
    pid = await asyncio.to_thread(pid_of, site.rig, stage)
    await eventually(lambda: site.rig.status()["conservation"]["running"] == 1, "a running request")
    os.kill(pid, signal.SIGKILL)
    return await record


async def healthy(site: Site) -> None:
    """Every process is ready again, the law balances, a request is served."""

    def all_is_well() -> bool:
        try:
            return bool(site.rig.status()["healthy"])
        except RuntimeError:  # exit code 1 says that something is wrong, which is what we wait out
            return False

    await eventually(all_is_well, "health")
    record = await run_call(site.nats, REQUEST)
    assert record.complete is not None
    assert record.complete.finish_reason is FinishReason.LENGTH


@pytest.mark.parametrize("stage", ["ingress", "routing", "queueing", "metering"])
async def test_a_running_stream_does_not_notice(site: Site, stage: str) -> None:
    """Once a request runs, it needs none of these."""
    undisturbed = await run_call(site.grpc, REQUEST)
    record = await killed_while_running(site, stage)
    assert record.complete is not None
    assert record.complete.finish_reason is FinishReason.LENGTH
    assert record.token_ids == undisturbed.token_ids
    await healthy(site)
    query = f"SELECT completion_tokens AS n FROM requests WHERE request_id = '{record.request_id}'"
    assert rows(site.rig, query) == [{"n": 120}]


async def test_an_executor_that_dies_is_replaced_and_the_stream_goes_on(site: Site) -> None:
    undisturbed = await run_call(site.grpc, REQUEST)
    record = await killed_while_running(site, "gpu_worker")
    assert record.complete is not None
    assert record.complete.finish_reason is FinishReason.LENGTH
    assert record.token_ids == undisturbed.token_ids
    assert record.text == undisturbed.text
    await healthy(site)
    query = f"SELECT completion_tokens AS n FROM requests WHERE request_id = '{record.request_id}'"
    assert rows(site.rig, query) == [{"n": 120}]
    [lost] = rows(site.rig, "SELECT count(*) AS n FROM intervals WHERE lost_ms > 0")
    assert lost["n"] >= 1


async def test_an_egress_that_dies_ends_its_requests_as_errors_with_receipts(rig: Rig) -> None:
    async with open_site(rig, seed=6) as site:
        with pytest.raises(CannotConnect):
            await killed_while_running(site, "egress")
    query = "SELECT count(*) AS n FROM requests WHERE finish_reason = 'error'"
    await eventually(lambda: rows(rig, query)[0]["n"] == 1, "a receipt by queueing")
    async with open_site(rig, seed=7) as site:
        await healthy(site)


async def test_stored_requests_outlive_queueing_and_an_executor_at_once(site: Site) -> None:
    """Twenty accepted requests, sixteen running: both processes die, all twenty are served."""
    calls = [asyncio.create_task(run_call(site.doors[n % 2], REQUEST)) for n in range(20)]
    await eventually(lambda: site.rig.status()["conservation"]["running"] == 16, "full slots")
    pids = [pid_of(site.rig, stage) for stage in ("queueing", "gpu_worker")]
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    records = await asyncio.gather(*calls)
    texts = {record.text for record in records}
    assert [r.complete.finish_reason for r in records if r.complete] == [FinishReason.LENGTH] * 20
    assert len(texts) == 1
    assert all(len(record.token_ids) == 120 for record in records)
    await healthy(site)


async def test_nats_server_comes_back_with_what_was_stored(site: Site) -> None:
    os.kill(pid_of(site.rig, "nats-server"), signal.SIGKILL)
    await healthy_after_bus(site.rig)


async def healthy_after_bus(rig: Rig) -> None:
    """New connections, since the old ones died with the server."""

    async def served() -> bool:
        try:
            async with (
                open_site(rig, seed=8) as site,
                aclosing(site.nats.generate(REQUEST)) as all_,
            ):
                kinds = [type(answer) async for answer in all_]
                return Chunk in kinds and kinds[-1] is Complete
        except CannotConnect:
            return False

    for _ in range(60):
        if await served():
            return
        await asyncio.sleep(0.5)
    raise AssertionError("no request was served after the bus came back")
