"""Draining, and receipts that cannot be stored at once."""

import asyncio

import pytest

from contracts import subjects
from contracts.errors import ErrorCode, HeadraceError
from contracts.internal import Done
from contracts.sessions import OpenSession
from tests.egress.builders import make_item
from tests.egress.conftest import World
from tests.egress.test_nats_door import DOOR, eventually, opened


async def test_draining_ends_what_runs_with_receipts(world: World) -> None:
    inbox = await opened(world)
    await world.send(make_item("a", 0))
    await inbox.next()
    draining = asyncio.ensure_future(world.service.drain())
    await asyncio.sleep(0.05)
    call = OpenSession(request_id="r2", tenant="demo", reply="_INBOX_demo.x", received_ms=0)
    with pytest.raises(HeadraceError) as error:
        await world.bus.request(DOOR, call, Done, timeout_s=2)
    assert error.value.info.code is ErrorCode.SHUTTING_DOWN
    last = await inbox.next()
    assert (last["finish_reason"], last["error"]["code"]) == ("error", "shutting_down")
    assert last["usage"]["completion_tokens"] == 1
    await draining
    (receipt,) = await world.receipts(1)
    assert receipt.error_code == "shutting_down"


async def test_draining_ends_what_is_queued_before_what_runs(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stages.egress.service.DRAIN_S", 60.0)
    runs, queued = await opened(world, "runs"), await opened(world, "queued")
    await world.send(make_item("a", 0, request_id="runs"))
    await runs.next()
    draining = asyncio.ensure_future(world.service.drain())
    assert (await queued.next())["error"]["code"] == "shutting_down"
    assert world.service.counters()["sessions_open"] == 1
    await world.send(make_item("b", 1, request_id="runs", finish="stop"))
    assert [(await runs.next())["type"] for _ in range(2)] == ["chunk", "complete"]
    await draining


async def test_without_a_usage_stream_the_client_hears_its_end_and_the_receipt_comes_later(
    world: World,
) -> None:
    await world.bus.js.delete_stream(subjects.USAGE_STREAM)
    inbox = await opened(world)
    await world.send(make_item("a", 0, finish="stop"))
    assert [(await inbox.next())["type"] for _ in range(2)] == ["chunk", "complete"]
    await world.bus.js.add_stream(name=subjects.USAGE_STREAM, subjects=[subjects.USAGE_ALL])
    (receipt,) = await world.receipts(1)
    assert receipt.completion_tokens == 1


async def test_receipts_that_cannot_be_stored_wait_in_one_line(world: World) -> None:
    await world.bus.js.delete_stream(subjects.USAGE_STREAM)
    names = [f"r{number}" for number in range(20)]
    inboxes = [await opened(world, name) for name in names]
    for name in names:
        await world.send(make_item("a", 0, request_id=name, finish="stop"))
    for inbox in inboxes:
        assert [(await inbox.next())["type"] for _ in range(2)] == ["chunk", "complete"]
    assert world.service.receipts.left == len(names)
    await world.bus.js.add_stream(name=subjects.USAGE_STREAM, subjects=[subjects.USAGE_ALL])
    await eventually(lambda: world.service.receipts.left == 0)
    assert [each.request_id for each in await world.receipts(len(names))] == names
