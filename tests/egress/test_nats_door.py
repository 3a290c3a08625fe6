"""Sessions of NATS clients, with a real server between all of us."""

import asyncio
import json
from typing import Any

import pytest
from nats.aio.msg import Msg

from contracts import subjects
from contracts.client import FinishReason
from contracts.errors import ErrorCode, ErrorInfo, HeadraceError
from contracts.internal import Done, Settled
from contracts.sessions import (
    CancelSession,
    DropSession,
    FailSession,
    OpenSession,
    ProgressQuery,
    ProgressReply,
    QueuePosition,
)
from stages.runtime.client.answers import ANSWER
from stages.runtime.clock import new_request_id
from tests.egress.builders import ids_of, make_item, make_terms
from tests.egress.conftest import EGRESS, World

DOOR = subjects.session(EGRESS)


class Inbox:
    """A client that listens."""

    def __init__(self, world: World, tenant: str = "demo") -> None:
        self.subject = f"{subjects.inbox(tenant)}.{new_request_id()}"
        self.messages: asyncio.Queue[Msg] = asyncio.Queue()
        self._client = world.bus.client

    async def listen(self) -> None:
        """Subscribe."""

        async def receive(msg: Msg) -> None:
            self.messages.put_nowait(msg)

        self.subscription = await self._client.subscribe(self.subject, cb=receive)

    async def next(self) -> dict[str, Any]:
        """The next message; it must be one of the schema."""
        message = await asyncio.wait_for(self.messages.get(), 20)
        ANSWER.validate_json(message.data)
        answer: dict[str, Any] = json.loads(message.data)
        return answer


async def opened(world: World, request_id: str = "r1", **terms: Any) -> Inbox:
    """An accepted session."""
    inbox = Inbox(world)
    await inbox.listen()
    await world.open(request_id, inbox.subject)
    terms.setdefault("door", "nats")
    await world.settle(Settled(request_id=request_id, admitted=make_terms(request_id, **terms)))
    assert (await inbox.next())["type"] == "accepted"
    return inbox


async def eventually(check: Any) -> None:
    """Wait up to 20 s."""
    for _ in range(1000):
        if check():
            return
        await asyncio.sleep(0.02)
    raise AssertionError("did not happen")


async def test_accepted_then_chunks_then_one_complete_and_one_receipt(world: World) -> None:
    inbox = await opened(world)
    await world.send(make_item("He", 0))
    await world.send(make_item("llo", 2, finish="stop", us=500))
    first, second, last = [await inbox.next() for _ in range(3)]
    assert (first["text"], second["text"], second["offset"]) == ("He", "llo", 2)
    assert (last["type"], last["finish_reason"]) == ("complete", "stop")
    assert last["usage"]["completion_tokens"] == 5
    (receipt,) = await world.receipts(1)
    assert (receipt.completion_tokens, receipt.egress, receipt.door) == (5, EGRESS, "nats")
    await asyncio.sleep(0.05)
    assert inbox.messages.empty()
    assert world.notices == []  # the executor ended it by itself


async def test_tokens_before_the_settlement_wait(world: World) -> None:
    inbox = Inbox(world)
    await inbox.listen()
    await world.open("r1", inbox.subject)
    await world.send(make_item("Hi", 0))
    await world.settle(Settled(request_id="r1", admitted=make_terms(door="nats")))
    assert [(await inbox.next())["type"] for _ in range(2)] == ["accepted", "chunk"]


async def test_a_refusal_is_the_only_answer(world: World) -> None:
    inbox = Inbox(world)
    await inbox.listen()
    await world.open("r1", inbox.subject)
    full = ErrorInfo(code=ErrorCode.SATURATED, message="full", retry_after_s=2, position=9)
    await world.settle(Settled(request_id="r1", error=full))
    answer = await inbox.next()
    assert (answer["type"], answer["accepted"]) == ("error", False)
    assert answer["error"]["code"] == "saturated"
    assert world.notices == []


async def test_opening_twice_is_opening_once(world: World) -> None:
    inbox = await opened(world)
    await world.open("r1", inbox.subject)
    await world.send(make_item("a", 0, finish="stop"))
    assert [(await inbox.next())["type"] for _ in range(2)] == ["chunk", "complete"]
    await world.open("r1", inbox.subject)  # late: it has ended by now
    await world.receipts(1)
    assert world.service.counters()["sessions_open"] == 0
    assert world.service.counters()["sessions_total"] == 1


async def test_a_dropped_session_is_forgotten_without_a_word(world: World) -> None:
    inbox = Inbox(world)
    await inbox.listen()
    await world.open("r1", inbox.subject)
    await world.bus.publish(DOOR, DropSession(request_id="r1"))
    await world.bus.publish(DOOR, DropSession(request_id="unknown"))
    query = ProgressQuery(request_ids=["r1"])
    reply = await world.bus.request(DOOR, query, ProgressReply, timeout_s=10)
    assert reply.sessions == []
    assert (inbox.messages.empty(), world.notices) == (True, [])
    await world.open("r1", inbox.subject)  # ingress may come back to us
    await world.settle(Settled(request_id="r1", admitted=make_terms(door="nats")))
    assert (await inbox.next())["type"] == "accepted"
    await world.bus.publish(DOOR, DropSession(request_id="r1"))  # too late: it is settled
    await world.send(make_item("a", 0, finish="stop"))
    assert [(await inbox.next())["type"] for _ in range(2)] == ["chunk", "complete"]


async def test_a_client_that_leaves_is_cancelled_and_billed(world: World) -> None:
    inbox = await opened(world)
    await world.send(make_item("a", 0))
    await inbox.next()
    await inbox.subscription.unsubscribe()
    await world.bus.client.flush()
    await world.send(make_item("b", 1))
    await eventually(lambda: world.notices)
    assert world.notices[0].reason is FinishReason.CANCELLED
    (receipt,) = await world.receipts(1)
    assert receipt.finish_reason is FinishReason.CANCELLED
    assert world.service.counters()["cancelled"] == 1


async def test_a_client_that_leaves_before_its_first_token_is_noticed_too(world: World) -> None:
    inbox = await opened(world)
    await inbox.subscription.unsubscribe()
    await world.bus.client.flush()
    await eventually(lambda: world.notices)
    (receipt,) = await world.receipts(1)
    assert (receipt.finish_reason, receipt.completion_tokens) == (FinishReason.CANCELLED, 0)


async def test_after_a_reconnection_clients_get_time_to_come_back(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    connected = {"for_s": 1.0}
    bus_of_the_door = world.service._nats._bus
    monkeypatch.setattr(bus_of_the_door, "connected_for_s", lambda: connected["for_s"])
    inbox = await opened(world)
    await inbox.subscription.unsubscribe()
    await world.bus.client.flush()
    for number, letter in enumerate("abc"):
        await world.send(make_item(letter, number))
    await world.send(make_item("d", 3))
    assert not world.notices
    connected["for_s"] = 7.0
    await world.send(make_item("e", 4))
    await eventually(lambda: world.notices)
    (receipt,) = await world.receipts(1)
    assert receipt.finish_reason is FinishReason.CANCELLED


async def test_only_the_owner_may_cancel(world: World) -> None:
    inbox = await opened(world)
    foreign = CancelSession(request_id="r1", tenant="other")
    with pytest.raises(HeadraceError) as error:
        await world.bus.request(DOOR, foreign, Done, timeout_s=2)
    assert error.value.info.code is ErrorCode.NOT_FOUND
    own = CancelSession(request_id="r1", tenant="demo")
    assert (await world.bus.request(DOOR, own, Done, timeout_s=2)).ok
    assert (await inbox.next())["finish_reason"] == "cancelled"
    assert not (await world.bus.request(DOOR, own, Done, timeout_s=2)).ok  # it had ended
    await eventually(lambda: world.notices)


async def test_a_stop_string_stops_the_executor(world: World) -> None:
    inbox = await opened(world, stop=["END"])
    await world.send(make_item("oneENDtwo", 0))
    assert (await inbox.next())["text"] == "one"
    last = await inbox.next()
    assert (last["finish_reason"], last["usage"]["completion_tokens"]) == ("stop", 6)
    await eventually(lambda: world.notices)
    assert world.notices[0].reason is FinishReason.STOP


async def test_the_deadline_ends_a_request_that_waits(world: World) -> None:
    soon = make_terms().work.stamps.received  # long ago
    inbox = await opened(world, deadline_ms=int(soon))
    last = await inbox.next()
    assert (last["finish_reason"], last["error"]["code"]) == ("timeout", "deadline_exceeded")
    (receipt,) = await world.receipts(1)
    assert receipt.error_code == "deadline_exceeded"


async def test_queue_positions_and_failures_reach_the_client(world: World) -> None:
    inbox = await opened(world)
    await world.bus.publish(DOOR, QueuePosition(positions={"r1": 4, "unknown": 5}))
    assert await inbox.next() == {"type": "queued", "queued": True, "position": 4}
    error = ErrorInfo(code=ErrorCode.NO_CAPACITY, message="no executor can run it")
    call = FailSession(request_id="r1", error=error)
    assert (await world.bus.request(DOOR, call, Done, timeout_s=2)).ok
    assert (await inbox.next())["error"]["code"] == "no_capacity"
    assert not (await world.bus.request(DOOR, call, Done, timeout_s=2)).ok


async def test_progress_of_open_closed_and_unknown_sessions(world: World) -> None:
    inbox = await opened(world)
    await opened(world, "r2")
    await world.send(
        make_item("ab", 0, attempt=2, finish="stop"), make_item("c", 0, request_id="r2")
    )
    await inbox.next()
    query = ProgressQuery(request_ids=["r1", "r2", "r3"])
    reply = await world.bus.request(DOOR, query, ProgressReply, timeout_s=2)
    known = {each.request_id: (each.open, each.attempt, each.ids) for each in reply.sessions}
    assert known == {"r1": (False, 2, []), "r2": (True, 1, ids_of("c"))}


@pytest.mark.parametrize(
    "reply", ["hr.cancel.x", "_INBOX.>", "_INBOX.a.*", "_INBOX", "", "_INBOX.a b", "_INBOX_other.a"]
)
async def test_a_reply_that_is_no_inbox_is_refused(world: World, reply: str) -> None:
    call = OpenSession(request_id="r1", tenant="demo", reply=reply, received_ms=0)
    with pytest.raises(HeadraceError) as error:
        await world.bus.request(DOOR, call, Done, timeout_s=2)
    assert error.value.info.code is ErrorCode.INVALID_REQUEST


async def test_an_admission_that_nobody_waits_for_is_closed_by_queueing(world: World) -> None:
    await world.settle(Settled(request_id="r9", admitted=make_terms("r9")))
    await eventually(lambda: world.notices)
    assert world.notices[0].orphan


async def test_a_frame_that_cannot_be_read_harms_nobody(world: World) -> None:
    inbox = await opened(world)
    await world.bus.publish(subjects.tokens(EGRESS), b"\xc1garbage")
    await world.send(make_item([-5], 0), make_item("x", 0, request_id="nobody"))
    assert (await inbox.next())["error"]["code"] == "internal"  # chr(-5) is no text
    other = await opened(world, "r2")
    await world.send(make_item("ok", 0, request_id="r2"))
    assert (await other.next())["text"] == "ok"


async def test_a_session_that_is_never_settled_ends_as_an_orphan(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stages.egress.session.UNSETTLED_MS", 100.0)
    inbox = Inbox(world)
    await inbox.listen()
    await world.open("r1", inbox.subject)
    answer = await inbox.next()
    assert (answer["type"], answer["error"]["code"]) == ("error", "internal")
    await eventually(lambda: world.notices)  # a subscription of its own
    assert world.notices[0].orphan
