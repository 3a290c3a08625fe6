"""Sessions that survive: replayed, attached, taken over, adopted; tokens that were lost come again."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from contracts import subjects
from contracts.client import FinishReason
from contracts.errors import ErrorCode, ErrorInfo, HeadraceError
from contracts.internal import Beat, Done, Settled
from contracts.sessions import (
    AdoptSession,
    FailSession,
    OpenSession,
    ProgressQuery,
    ProgressReply,
    SettleSession,
)
from stages.egress.neighbours import Neighbours
from stages.runtime.clock import now_ms
from stages.runtime.launch import BusAddress
from tests.egress.builders import ids_of, make_item, make_terms
from tests.egress.conftest import EGRESS, World, free_port
from tests.egress.pair import EXECUTOR, OTHER, Pair, paired, process
from tests.egress.test_nats_door import DOOR, Inbox, opened
from tests.support.waiting import eventually


@pytest.fixture
async def pair(world: World, bus_address: BusAddress, tmp_path: Path) -> AsyncIterator[Pair]:
    async with paired(world, bus_address, tmp_path) as both:
        yield both


async def until_end(inbox: Inbox) -> tuple[str, dict[str, Any], int]:
    """All text from here on, the last answer, and the offset after the text."""
    text, after = "", 0
    while (answer := await inbox.next())["type"] not in ("complete", "error"):
        if answer["type"] == "chunk":
            text, after = text + answer["text"], answer["next_offset"]
    return text, answer, after


async def chunk(inbox: Inbox) -> dict[str, Any]:
    """The next text."""
    while (answer := await inbox.next())["type"] == "queued":
        pass
    assert answer["type"] == "chunk", answer
    return answer


async def begun(pair: Pair, request_id: str = "r1", **terms: Any) -> Inbox:
    """A request that runs, with its first tokens."""
    terms = {"door": "nats", "received": now_ms(), **terms}
    inbox = await opened(pair.world, request_id, **terms)
    pair.owner.runs(make_terms(request_id, **terms))
    await pair.executor.make(request_id, "one ")
    assert (await chunk(inbox))["text"] == "one "
    return inbox


async def test_a_finished_answer_is_read_again_at_any_egress(pair: Pair) -> None:
    first = await begun(pair)
    await pair.executor.make("r1", "two", "stop")
    _, complete, after = await until_end(first)
    for at in (EGRESS, OTHER):
        for offset, text in ((0, "one two"), (4, "two"), (after, "")):
            inbox = await pair.resume("r1", offset, at=at)
            assert (await inbox.next())["type"] == "accepted"
            assert (await until_end(inbox))[:2] == (text, complete)
    assert [each.request_id for each in await pair.world.receipts(1)] == ["r1"]
    assert not pair.owner.taken


async def test_an_open_session_goes_to_the_client_that_resumed_it_last(pair: Pair) -> None:
    first = await begun(pair)
    second = await pair.resume("r1", 2, at=EGRESS)
    assert (await second.next())["type"] == "accepted"
    assert (await chunk(second))["text"] == "e "
    _, refused, _ = await until_end(first)
    assert refused["error"]["code"] == "conflict"
    await first.subscription.unsubscribe()  # whose absence must not end what is another's now
    await pair.executor.make("r1", "two", "stop")
    text, last, _ = await until_end(second)
    assert (text, last["finish_reason"]) == ("two", "stop")
    assert first.messages.empty()


@pytest.mark.parametrize("tenant", ["demo", "other"])
async def test_a_foreign_id_is_as_unknown_as_one_that_never_was(pair: Pair, tenant: str) -> None:
    await begun(pair)
    known = "r1" if tenant == "other" else "r-unknown"
    said = []
    for at in (EGRESS, OTHER):
        inbox = await pair.resume(known, 0, at=at, tenant=tenant)
        _, answer, _ = await until_end(inbox)
        said.append(answer["error"]["message"].replace(known, "ID"))
        assert answer["error"]["code"] == "not_found"
    assert len(set(said)) == 1
    assert "'ID'" in said[0]
    assert not pair.owner.taken  # a foreign session moves nowhere


async def test_a_session_moves_to_the_egress_where_its_client_resumes(pair: Pair) -> None:
    first = await begun(pair, stop=["END"])
    await pair.executor.make("r1", "two EN")  # held back: may become a stop text
    assert (await chunk(first))["text"] == "two "
    second = await pair.resume("r1", 4)
    assert (await second.next())["type"] == "accepted"
    assert (await chunk(second))["text"] == "two "
    await eventually(lambda: pair.executor.to.get("r1") == OTHER)
    await pair.executor.make("r1", "TER", "length")
    text, last, _ = await until_end(second)
    assert (text, last["finish_reason"]) == ("ENTER", "length")
    assert (await until_end(first))[1]["error"]["code"] == "conflict"
    (receipt,) = await pair.world.receipts(1)
    assert (receipt.egress, receipt.completion_tokens) == (OTHER, 13)
    query = ProgressQuery(request_ids=["r1"])
    reply = await pair.world.bus.request(DOOR, query, ProgressReply, timeout_s=10)
    assert not reply.sessions  # queueing must ask on: it is open elsewhere


async def test_two_clients_that_resume_at_once_move_a_session_once(pair: Pair) -> None:
    await begun(pair)
    inboxes = await asyncio.gather(pair.resume("r1", 4), pair.resume("r1", 4))
    for inbox in inboxes:
        assert (await inbox.next())["type"] == "accepted"
    await eventually(lambda: pair.executor.to.get("r1") == OTHER)
    await pair.executor.make("r1", "two", "stop")
    ends = [(await until_end(inbox))[1]["type"] for inbox in inboxes]
    assert sorted(ends) == ["complete", "error"]  # the last one has replaced the other
    assert len(pair.owner.taken) == 1
    counters = pair.other.counters()
    assert (counters["taken_over"], counters["sessions_open"]) == (1, 0)


async def test_an_egress_that_is_killed_costs_a_nats_client_nothing(
    pair: Pair, bus_address: BusAddress
) -> None:
    bus, name = pair.world.bus, "egress-2-dddd"
    async with process(name, bus_address, f"127.0.0.1:{free_port()}") as child:
        inbox = Inbox(pair.world)
        await inbox.listen()
        call = OpenSession(
            request_id="r1", tenant="demo", reply=inbox.subject, received_ms=now_ms()
        )
        await bus.request(subjects.session(name), call, Done, timeout_s=10)
        terms = make_terms("r1", door="nats", received=now_ms())
        settle = SettleSession(settled=Settled(request_id="r1", admitted=terms))
        await bus.publish(subjects.session(name), settle)
        assert (await inbox.next())["type"] == "accepted"
        pair.owner.runs(terms)
        pair.executor.to["r1"] = name
        await pair.executor.make("r1", "one ")
        got = await chunk(inbox)
        child.kill()
        await child.wait()
    await pair.executor.make("r1", "two ")  # into the void
    second = await pair.resume("r1", got["next_offset"])
    assert (await second.next())["type"] == "accepted"
    assert (await chunk(second))["text"] == "two "
    await eventually(lambda: pair.executor.to["r1"] == OTHER)
    await pair.executor.make("r1", "three", "stop")
    text, last, _ = await until_end(second)
    assert (text, last["finish_reason"]) == ("three", "stop")
    (receipt,) = await pair.world.receipts(1)
    assert (receipt.egress, receipt.completion_tokens) == (OTHER, 13)


async def test_tokens_of_a_dead_executor_are_read_from_the_recorder(pair: Pair) -> None:
    """Egress and executor are lost together; what was sent is recorded, the rest is made again."""
    terms = make_terms("r1", received=now_ms(), egress="egress-9-gone")
    pair.owner.runs(terms)
    pair.executor.to["r1"] = "egress-9-gone"
    await pair.executor.make("r1", "one ")
    await pair.executor.make("r1", "two ")
    await pair.executor.die()
    adopt = AdoptSession(terms=terms, executor=EXECUTOR, attempt=1)
    done = await pair.world.bus.request(subjects.session(OTHER), adopt, Done, timeout_s=10)
    assert done.ok
    query = ProgressQuery(request_ids=["r1"])
    async with asyncio.timeout(30):
        while True:
            reply = await pair.world.bus.request(
                subjects.session(OTHER), query, ProgressReply, timeout_s=10
            )
            if reply.sessions[0].ids == ids_of("one two "):
                break
            await asyncio.sleep(0.05)
    # Queueing leases it again with them:
    inbox = await pair.resume("r1", 4)
    assert (await inbox.next())["type"] == "accepted"
    assert (await chunk(inbox))["text"] == "two "
    item = make_item("three", 8, attempt=2, finish="stop")
    await pair.world.send(item, to=OTHER)
    text, last, _ = await until_end(inbox)
    assert (text, last["resumed"]) == ("three", "inexact")  # the second has told no fingerprint


async def test_an_adopted_session_without_a_client_ends_with_its_receipt_and_can_be_read(
    pair: Pair,
) -> None:
    terms = make_terms("r1", received=now_ms(), egress="egress-9-gone")
    pair.executor.made["r1"] = "one "
    adopt = AdoptSession(terms=terms, executor=EXECUTOR, attempt=1)
    for _ in range(2):  # asked again, as after a missed answer
        await pair.world.bus.request(subjects.session(OTHER), adopt, Done, timeout_s=10)
    await eventually(lambda: pair.executor.to.get("r1") == OTHER)
    await pair.executor.make("r1", "two", "stop")
    (receipt,) = await pair.world.receipts(1)
    assert (receipt.finish_reason, receipt.completion_tokens) == (FinishReason.STOP, 7)
    inbox = await pair.resume("r1", 4, at=EGRESS)
    assert (await inbox.next())["type"] == "accepted"
    assert (await until_end(inbox))[0] == "two"


async def test_an_adopted_session_whose_client_never_comes_is_cancelled(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stages.egress.resuming.ALONE_MS", 100.0)
    terms = make_terms("r1", received=now_ms(), egress="egress-9-gone")
    adopt = AdoptSession(terms=terms, executor=None, attempt=0)
    await pair.world.bus.request(subjects.session(OTHER), adopt, Done, timeout_s=10)
    (receipt,) = await pair.world.receipts(1)
    assert receipt.finish_reason is FinishReason.CANCELLED
    await eventually(lambda: pair.world.notices)


async def test_an_end_that_was_recorded_is_billed_when_its_egress_died_before_that(
    pair: Pair,
) -> None:
    """As if A had died between record and receipt: B, asked to adopt it, bills what A had told."""
    first = await begun(pair)
    await pair.executor.make("r1", "two", "stop")
    await until_end(first)
    billed = await pair.world.receipts(1)
    await pair.world.bus.js.delete_stream(subjects.USAGE_STREAM)
    await pair.world.bus.js.add_stream(name=subjects.USAGE_STREAM, subjects=[subjects.USAGE_ALL])
    adopt = AdoptSession(terms=make_terms("r1"), executor=EXECUTOR, attempt=1)
    await pair.world.bus.request(subjects.session(OTHER), adopt, Done, timeout_s=10)
    again = await pair.world.receipts(1)
    times = {"received_ms", "finished_ms"}  # of the door and of the terms: not the same instant
    assert again[0].model_dump(exclude=times) == billed[0].model_dump(exclude=times)


async def test_a_client_that_leaves_with_a_window_comes_back(pair: Pair) -> None:
    inbox = await begun(pair, resume_window_ms=60_000)
    await inbox.subscription.unsubscribe()
    live = pair.world.service._sessions.find("r1")
    assert live is not None
    sink = live.sink
    async with asyncio.timeout(30):
        while live.sink is sink:
            await pair.executor.make("r1", "x")
            await asyncio.sleep(0.05)
    assert not pair.world.notices
    count = len(pair.executor.made["r1"])
    await pair.executor.make("r1", "two", "stop")
    back = await pair.resume("r1", 4)
    assert (await back.next())["type"] == "accepted"
    text, last, _ = await until_end(back)
    assert text == "x" * (count - 4) + "two"
    assert last["usage"]["completion_tokens"] == count + 3


async def test_an_idempotent_repeat_goes_on_with_the_first_call(pair: Pair) -> None:
    first = await begun(pair)
    repeat = Inbox(pair.world)
    await repeat.listen()
    await pair.world.open("r2", repeat.subject)
    await pair.world.settle(Settled(request_id="r2", same_as="r1", tenant="demo"))
    accepted = await repeat.next()
    assert (accepted["type"], accepted["request_id"]) == ("accepted", "r1")
    assert (await chunk(repeat))["text"] == "one "
    await pair.executor.make("r1", "two", "stop")
    assert (await until_end(repeat))[0] == "two"
    assert (await until_end(first))[1]["error"]["code"] == "conflict"
    (receipt,) = await pair.world.receipts(1)
    assert receipt.request_id == "r1"


async def test_a_frame_that_was_lost_is_asked_for_at_once(pair: Pair) -> None:
    inbox = await begun(pair)
    await pair.executor.make("r1", "two ", lost=True)
    await pair.executor.make("r1", "three", "stop")
    text, last, _ = await until_end(inbox)
    assert (text, last["finish_reason"]) == ("two three", "stop")
    assert pair.executor.asked[0].egress is None


async def test_a_gap_that_nobody_can_fill_waits_for_the_next_attempt(pair: Pair) -> None:
    inbox = await begun(pair)
    await pair.executor.die()
    await pair.world.send(make_item("three", 8))
    await pair.world.send(make_item("two three", 4, attempt=2, finish="stop"))
    text, last, _ = await until_end(inbox)
    assert (text, last["finish_reason"]) == ("two three", "stop")


async def test_the_word_of_an_owner_that_was_replaced_ends_nothing(pair: Pair) -> None:
    await begun(pair)
    error = ErrorInfo(code=ErrorCode.INTERNAL, message="lost")

    async def fail(request_id: str, epoch: int) -> bool:
        call = FailSession(request_id=request_id, error=error, pool="small", epoch=epoch)
        return (await pair.world.bus.request(DOOR, call, Done, timeout_s=10)).ok

    assert not await fail("unknown", 3)
    with pytest.raises(HeadraceError) as refused:
        await fail("r1", 2)
    assert refused.value.info.code is ErrorCode.CONFLICT
    assert await fail("r1", 3)


async def test_a_revoked_key_ends_its_streams(pair: Pair) -> None:
    inbox = await begun(pair, key_id="abc")  # the topology has no such key
    text, last, _ = await until_end(inbox)
    assert text == ""
    assert (last["finish_reason"], last["error"]["code"]) == ("cancelled", "unauthenticated")
    (receipt,) = await pair.world.receipts(1)
    assert (receipt.error_code, receipt.key_id) == ("unauthenticated", "abc")


async def test_an_egress_that_stops_beside_another_sends_its_clients_there(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = await begun(pair)
    monkeypatch.setattr(Neighbours, "any", lambda _: True)
    draining = asyncio.ensure_future(pair.world.service.drain())
    assert (await until_end(first))[1]["error"]["code"] == "shutting_down"
    second = await pair.resume("r1", 4)
    assert (await second.next())["type"] == "accepted"
    await eventually(lambda: pair.executor.to.get("r1") == OTHER)
    await pair.executor.make("r1", "two", "stop")
    assert (await until_end(second))[0] == "two"
    await draining
    (receipt,) = await pair.world.receipts(1)
    assert (receipt.finish_reason, receipt.egress) == (FinishReason.STOP, OTHER)


def test_only_a_ready_egress_is_a_neighbour() -> None:
    now = [0.0]
    neighbours = Neighbours(EGRESS, lambda: now[0])

    def beat(name: str, **state: bool) -> None:
        beat = Beat(
            stage="egress",
            instance="e",
            incarnation=name,
            pid=1,
            generation=1,
            ready=state.get("ready", True),
            draining=state.get("draining", False),
            spawned_ms=0,
            sent_ms=0,
        )
        neighbours.hear(beat)

    beat(EGRESS)
    beat(OTHER, ready=False)
    assert not neighbours.any()
    beat(OTHER)
    assert neighbours.any()
    now[0] = 2.0
    assert not neighbours.any()
    beat(OTHER)
    beat(OTHER, draining=True)
    assert not neighbours.any()


async def test_without_its_streams_an_egress_serves_all_the_same(world: World) -> None:
    """HR_TOK and HR_SESSION are recorders: `world` has neither."""
    inbox = await opened(world)
    await world.send(make_item("ab", 0, finish="stop"))
    assert (await until_end(inbox))[0] == "ab"


async def test_records_come_back_after_the_stream_was_lost(pair: Pair) -> None:
    """As after a restart of nats-server: what is open or ended a while ago is recorded again."""
    first = await begun(pair)
    done = await opened(pair.world, "r2", received=now_ms())
    await pair.executor.make("r2", "ab", "stop")
    await until_end(done)
    await pair.world.bus.js.purge_stream(subjects.SESSION_STREAM)
    renewal = pair.world.service._renewal
    renewal._done = 0
    renewal._bus.connected_for_s = lambda: 0.1  # type: ignore[method-assign]
    await renewal.look()
    await renewal._bus.client.flush()
    again = await pair.resume("r2", 0)
    assert (await again.next())["type"] == "accepted"
    assert (await until_end(again))[0] == "ab"
    assert first.messages.empty() or (await first.next())["type"] == "queued"
