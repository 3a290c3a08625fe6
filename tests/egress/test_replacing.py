"""Several clients want the same request, at two egresses: the last one has it, and it is open once."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from contracts.sessions import SessionRecord
from stages.egress.records import Records
from stages.runtime.clock import now_ms
from stages.runtime.launch import BusAddress
from tests.egress.conftest import EGRESS, World
from tests.egress.pair import OTHER, Pair, paired
from tests.egress.test_nats_door import Inbox
from tests.egress.test_resume import begun, until_end
from tests.support.waiting import eventually


@pytest.fixture
async def pair(world: World, bus_address: BusAddress, tmp_path: Path) -> AsyncIterator[Pair]:
    async with paired(world, bus_address, tmp_path) as both:
        yield both


async def last(inbox: Inbox) -> dict[str, Any]:
    """The last answer; an open session says `queued` every second for good."""
    async with asyncio.timeout(30):
        return (await until_end(inbox))[1]


async def test_a_client_whose_call_came_in_earlier_replaces_nobody(pair: Pair) -> None:
    first = await begun(pair)
    early_ms = now_ms()
    second = await pair.resume("r1", 4)
    assert (await second.next())["type"] == "accepted"
    late = await pair.resume("r1", 4, received_ms=early_ms)  # held up; its client may have gone
    assert (await last(late))["error"]["code"] == "conflict"
    await eventually(lambda: pair.executor.to.get("r1") == OTHER)
    await pair.executor.make("r1", "two", "stop")
    assert (await last(second))["type"] == "complete"
    assert (await last(first))["error"]["code"] == "conflict"


async def test_a_session_that_moves_back_on_an_old_record_is_open_once(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record that names its new home may still be on its way: queueing knows it."""
    await begun(pair)
    old = await Records(pair.world.bus, EGRESS).read("r1")
    assert old is not None
    assert old.egress == EGRESS
    second = await pair.resume("r1", 4, at=OTHER)
    assert (await second.next())["type"] == "accepted"
    await eventually(lambda: pair.executor.to.get("r1") == OTHER)

    async def read(_: Records, __: str) -> SessionRecord:
        return old

    monkeypatch.setattr(Records, "read", read)
    third = await pair.resume("r1", 4, at=EGRESS)
    assert (await third.next())["type"] == "accepted"
    assert (await last(second))["error"]["code"] == "conflict"
    await eventually(lambda: pair.executor.to.get("r1") == EGRESS)
    await pair.executor.make("r1", "two", "stop")
    assert (await last(third))["type"] == "complete"
    assert pair.other.counters()["sessions_open"] == 0
