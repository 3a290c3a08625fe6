"""What happens around ingress while calls come: owners change, sessions move, topologies change."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from nats.aio.client import Client

from contracts import subjects
from contracts.client import ModelList, Refused
from contracts.errors import ErrorCode, HeadraceError
from contracts.internal import AdmitReply, Settled, Work
from stages.ingress import sessions
from stages.ingress.admission import Admission
from stages.ingress.service import IngressService
from stages.runtime.bus import Bus
from stages.runtime.clock import now_ms
from stages.runtime.models.errors import ModelError
from tests.ingress.neighbours import AUTH, Neighbours, door_call
from tests.queueing.support import make_work
from tests.support.nats import flushed
from tests.support.stages import topology
from tests.support.waiting import eventually

# Admission


class Queue:
    """Routing and queueing in one, as an owner that comes late or answers late."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self.heard: list[str] = []
        self.mute = 0
        self.refusal: HeadraceError | None = None

    async def start(self) -> None:
        await self._bus.serve(subjects.ROUTE, Work, self._admit)
        await flushed(self._bus)

    async def _admit(self, work: Work, _: object) -> AdmitReply | None:
        self.heard.append(work.request_id)
        if len(self.heard) <= self.mute:
            return None
        if self.refusal is not None:
            raise self.refusal
        return AdmitReply(work=work, prompt_tokens=1, position=0)


@pytest.fixture
async def asking(bus_address: Any) -> AsyncIterator[Admission]:
    bus = await Bus.connect(bus_address, "ingress")
    yield Admission(bus)
    await bus.close()


async def test_while_nobody_serves_it_is_asked_again(bus: Bus, asking: Admission) -> None:
    """The pause of a takeover: without asking again this would be a refusal."""
    queue = Queue(bus)
    asked = asyncio.ensure_future(asking.ask(make_work()))
    await asyncio.sleep(0.3)  # long enough to be told that nobody listens
    assert not asked.done()
    await queue.start()
    assert AdmitReply.model_validate_json(await asyncio.wait_for(asked, 20)).position == 0


async def test_an_answer_that_was_missed_is_asked_for_again_under_the_same_id(
    bus: Bus, asking: Admission
) -> None:
    queue = Queue(bus)
    queue.mute = 1
    await queue.start()
    work = make_work()
    await asking.ask(work)
    assert queue.heard == [work.request_id] * 2


async def test_a_refusal_is_final_and_a_doubtful_one_is_forgotten(
    bus: Bus, asking: Admission
) -> None:
    notices: list[bytes] = []
    await bus.listen(subjects.CANCEL_ALL, lambda msg: notices.append(msg.data))
    queue = Queue(bus)
    queue.refusal = HeadraceError(ErrorCode.NO_CAPACITY, "the store is away")
    await queue.start()
    with pytest.raises(HeadraceError, match="the store is away"):
        await asking.ask(make_work())
    assert len(queue.heard) == 1
    assert notices == []
    queue.mute = 2  # the next answer is missed: that one may be stored
    with pytest.raises(HeadraceError, match="the store is away"):
        await asking.ask(make_work())
    await eventually(lambda: len(notices) == 1)


async def test_nobody_serves_until_the_deadline(bus: Bus, asking: Admission) -> None:
    work = make_work(deadline_ms=int(now_ms()) - 400)
    with pytest.raises(HeadraceError) as refused:
        await asking.ask(work)
    assert refused.value.info.code is ErrorCode.DEADLINE_EXCEEDED


# Sessions that move


async def answer(client: Client, verb: str, body: Any) -> dict[str, Any]:
    raw = json.dumps(body).encode()
    reply = await client.request(f"headrace.v1.acme.{verb}", raw, timeout=20, headers=AUTH)
    found: dict[str, Any] = json.loads(reply.data)
    return found


async def test_resume_goes_to_the_egress_that_holds_the_session(
    ingress: IngressService, neighbours: Neighbours, acme: Client, bus: Bus
) -> None:
    other = Neighbours(bus, "f")
    await other.hold_sessions()
    await eventually(lambda: ingress.detail()["egresses"] == "e, f")
    work = make_work()
    await other.record(work)
    for _ in range(2):
        body = json.dumps({"request_id": work.request_id, "offset": 7}).encode()
        await acme.publish("headrace.v1.acme.resume", body, reply="_INBOX_acme.i", headers=AUTH)
        call = await asyncio.wait_for(other.resumed.get(), 20)
        assert (call.request_id, call.offset, call.tenant) == (work.request_id, 7, "acme")
        assert call.reply == "_INBOX_acme.i"
    assert neighbours.resumed.empty()


async def test_resume_of_what_has_no_record_goes_to_any_living_egress(
    ingress: IngressService, neighbours: Neighbours, acme: Client, bus: Bus
) -> None:
    work = make_work()
    await neighbours.record(work, egress="dead")
    for request_id in (work.request_id, "*", "no-such"):
        body = json.dumps({"request_id": request_id}).encode()
        await acme.publish("headrace.v1.acme.resume", body, reply="_INBOX_acme.i", headers=AUTH)
        call = await asyncio.wait_for(neighbours.resumed.get(), 20)
        assert (call.request_id, call.offset) == (request_id, 0)


async def test_other_doors_learn_who_resumes(ingress: IngressService, bus: Bus) -> None:
    body = {"request_id": "r1", "offset": 3}
    found = await bus.request(subjects.ingress(0), door_call(body, "resume"), Settled, 20)
    assert (found.request_id, found.same_as, found.tenant) == ("r1", "r1", "acme")
    for bad in (door_call(body, "resume", api_key="guess"), door_call({"offset": -1}, "resume")):
        with pytest.raises(HeadraceError):
            await bus.request_bytes(subjects.ingress(0), bad, 20)


async def test_cancel_waits_for_a_session_that_is_being_adopted(
    ingress: IngressService, neighbours: Neighbours, acme: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "ADOPTED_S", 30.0)
    work = make_work()
    await neighbours.record(work, egress="dead")
    await flushed(neighbours._bus)
    asked = asyncio.ensure_future(answer(acme, "cancel", {"request_id": work.request_id}))
    await eventually(lambda: neighbours.cancels > 1)
    neighbours.running[work.request_id] = "acme"
    found = await asyncio.wait_for(asked, 20)
    assert found == {"type": "cancelled", "request_id": work.request_id}


async def test_a_foreign_session_is_not_found_in_the_same_words(
    ingress: IngressService, neighbours: Neighbours, acme: Client
) -> None:
    work = make_work(tenant="other")
    await neighbours.record(work)
    texts = []
    for request_id in (work.request_id, "unknown-" + work.request_id[8:]):
        refused = Refused.model_validate(await answer(acme, "cancel", {"request_id": request_id}))
        assert refused.error.code is ErrorCode.NOT_FOUND
        texts.append(refused.error.message.replace(request_id, "ID"))
    assert texts[0] == texts[1]
    assert neighbours.cancels == 2  # nobody waited for the foreign one


# Topologies that change


async def test_a_new_generation_is_taken_over_while_calls_come(
    ingress: IngressService, neighbours: Neighbours, bus: Bus
) -> None:
    old = topology()
    routes = [route.model_dump(exclude_none=True) for route in old.routes]
    new = topology(
        routes=[{"name": "fast", "pool": "q", "match": {"priority": "high"}}, *routes],
        tenants={"acme": old.tenants["acme"].model_dump()},
    )
    began = ingress._intake
    await ingress.prepare(new)
    assert ingress._intake is began
    await ingress.reconfigure(new, 2)
    call = door_call({"prompt": "x", "priority": "high"})
    # Routing has not heard of it: the request goes where ingress knows the route leads.
    found = await bus.request(subjects.ingress(0), call, Settled, 20)
    assert found.admitted is not None
    assert found.admitted.work.decision().reason == "route fast of generation 2"
    assert (neighbours.admitted[-1].pool, neighbours.admitted[-1].generation) == ("q", 2)
    gone = door_call({}, "models", api_key="key-of-other")
    with pytest.raises(HeadraceError) as refused:
        await bus.request(subjects.ingress(0), gone, ModelList, 20)
    assert refused.value.info.code is ErrorCode.UNAUTHENTICATED


async def test_a_model_that_is_missing_stops_the_change_not_the_calls(
    ingress: IngressService, bus: Bus, tmp_path: Path
) -> None:
    with pytest.raises(ModelError):
        await ingress.prepare(topology(source=str(tmp_path / "nothing-here")))
    found = await bus.request(subjects.ingress(0), door_call({"prompt": "x"}), Settled, 20)
    assert found.admitted is not None


async def test_work_says_what_the_call_wants(
    ingress: IngressService, neighbours: Neighbours, bus: Bus
) -> None:
    body = {"prompt": "x", "resume_window_ms": 5000}
    call = door_call(body, sibling_of="first", choice=2)
    assert (await bus.request(subjects.ingress(0), call, Settled, 20)).admitted is not None
    [work] = neighbours.admitted
    assert (work.resume_window_ms, work.sibling_of, work.choice, work.hop) == (5000, "first", 2, 0)
    assert len(work.key_id or "") == 12
