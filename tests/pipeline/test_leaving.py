"""A client that cancels or leaves frees its slot, and a receipt says how much it got."""

import asyncio
from contextlib import aclosing

import pytest

from contracts.client import Accepted, Chunk, Complete, FinishReason, GenerateRequest
from stages.cli.bench.pipeline.cancel import slot_watch
from stages.cli.bench.pipeline.site import Site
from stages.cli.rig import KEY, TENANT
from stages.runtime.client import GrpcCaller, NatsCaller
from tests.pipeline.conftest import eventually, receipt, rows

LONG = GenerateRequest(prompt="Once", max_tokens=2000, temperature=0.0, ignore_eos=True)
SLOTS = 16


@pytest.mark.parametrize("door", ["grpc", "nats"])
async def test_a_cancel_ends_the_stream_and_frees_the_slot(site: Site, door: str) -> None:
    caller = site.grpc if door == "grpc" else site.nats
    delivered, request_id, complete, asked = 0, "", None, None
    async with slot_watch(site) as watch, aclosing(caller.generate(LONG)) as answers:
        async for answer in answers:
            match answer:
                case Accepted():
                    request_id = answer.request_id
                case Chunk():
                    delivered += 1
                    if delivered >= 5 and watch.busy(SLOTS) and not asked:
                        asked = await caller.cancel(request_id)
                case Complete():
                    complete = answer
        await watch.all_free(SLOTS)
    assert complete is not None
    assert complete.finish_reason is FinishReason.CANCELLED
    row = receipt(site.rig, request_id)
    assert row["finish_reason"] == "cancelled"
    assert row["completion_tokens"] == complete.usage.completion_tokens >= 5


@pytest.mark.parametrize("door", ["grpc", "nats"])
async def test_a_client_that_leaves_is_noticed(site: Site, door: str) -> None:
    if door == "grpc":
        leaving: GrpcCaller | NatsCaller = await GrpcCaller.connect(site.rig.grpc_address, KEY)
    else:
        leaving = await NatsCaller.connect(site.rig.nats_url, TENANT, KEY)
    request_id, chunks = "", 0
    async with slot_watch(site) as watch:
        async for answer in leaving.generate(LONG):
            if isinstance(answer, Accepted):
                request_id = answer.request_id
            chunks += isinstance(answer, Chunk)
            if chunks >= 3 and watch.busy(SLOTS):
                break
        await leaving.close()
        await watch.all_free(SLOTS)
    query = f"SELECT 1 FROM requests WHERE request_id = '{request_id}'"
    await eventually(lambda: bool(rows(site.rig, query)), "a receipt")
    row = receipt(site.rig, request_id)
    assert row["finish_reason"] == "cancelled"
    assert row["completion_tokens"] >= 3


async def test_another_tenants_or_an_unknown_request_cannot_be_cancelled(site: Site) -> None:
    for caller in site.doors:
        reply = await caller.cancel("01890000-0000-7000-8000-000000000000")
        assert reply.type == "error"
        assert reply.error.code == "not_found"


async def test_cancelling_what_waits_in_the_queue(site: Site) -> None:
    """More requests than slots: the last one is cancelled before it ever ran."""
    running = [asyncio.create_task(_hold(site, index)) for index in range(SLOTS)]
    await eventually(lambda: site.rig.status()["conservation"]["running"] == SLOTS, "full slots")
    async with aclosing(site.grpc.generate(LONG)) as answers:
        first = await anext(answers)
        assert isinstance(first, Accepted)
        await site.nats.cancel(first.request_id)
        rest = [answer async for answer in answers]
    assert isinstance(rest[-1], Complete)
    assert rest[-1].finish_reason is FinishReason.CANCELLED
    assert rest[-1].usage.completion_tokens == 0
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    await eventually(lambda: site.rig.status()["conservation"]["running"] == 0, "empty slots")
    assert site.rig.status()["conservation"]["balanced"]


async def _hold(site: Site, index: int) -> None:
    async with aclosing(site.doors[index % 2].generate(LONG)) as answers:
        async for _ in answers:
            pass
