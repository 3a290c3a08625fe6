"""Idempotency keys: one run for a key, whoever calls, however often, and whatever died in between."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from nats.aio.client import Client

from contracts import subjects
from contracts.client import ChatRequest, GenerateRequest
from contracts.errors import ErrorCode, HeadraceError
from contracts.internal import IdempotencyRecord, Settled
from stages.ingress import idempotency
from stages.ingress.idempotency import Claim, Idempotency
from stages.ingress.identity import Identity, identity
from stages.ingress.service import IngressService
from stages.runtime.bus import Bus
from stages.runtime.clock import now_ms
from tests.ingress.neighbours import AUTH, Neighbours, door_call
from tests.support.stages import OTHER_KEY

WHO = Identity(key="k1", body="b1")
FAR = 2.0**52


def generate(**changes: Any) -> Identity:
    body = {"prompt": "Hello", "idempotency_key": "k"} | changes
    made = identity("acme", "generate", 0, GenerateRequest.model_validate(body))
    assert made is not None
    return made


def test_what_makes_two_bodies_the_same() -> None:
    first = generate()
    assert generate(timeout_ms=5, temperature=1.0) == first  # a default written out, another limit
    assert generate(deadline_unix_ms=7) == first
    for other in ({"prompt": "Hi"}, {"seed": 3}, {"metadata": {"a": "b"}}, {"stop": ["x"]}):
        assert generate(**other).key == first.key
        assert generate(**other).body != first.body


def test_whose_key_it_is() -> None:
    request = GenerateRequest(prompt="Hello", idempotency_key="k")
    mine = identity("acme", "generate", 0, request)
    assert identity("other", "generate", 0, request) != mine
    assert identity("acme", "generate", 1, request) != mine
    chat = ChatRequest.model_validate(
        {"messages": [{"role": "user", "content": "Hello"}], "idempotency_key": "k"}
    )
    made = identity("acme", "chat", 0, chat)
    assert made is not None
    assert mine is not None
    assert (made.key == mine.key, made.body == mine.body) == (True, False)
    assert identity("acme", "generate", 0, GenerateRequest(prompt="Hello")) is None


Make = Callable[[], Awaitable[Idempotency]]


@pytest.fixture
def accepted() -> set[str]:
    """Requests whose session has a record."""
    return set()


@pytest.fixture
def make(bus: Bus, accepted: set[str]) -> Make:
    async def one() -> Idempotency:
        async def known(request_id: str) -> bool:
            return request_id in accepted

        return Idempotency(bus, known)

    return one


async def test_one_of_many_that_race_gets_the_key(make: Make, accepted: set[str]) -> None:
    many = [await make() for _ in range(8)]
    calls = [
        asyncio.ensure_future(each.claim(WHO, f"r{number}", FAR))
        for number, each in enumerate(many)
    ]
    done, _ = await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED, timeout=20)
    [won] = [call.result() for call in done]
    assert isinstance(won, Claim)
    accepted.add(won.record.request_id)
    outcomes = await asyncio.gather(*calls)
    assert sum(isinstance(outcome, Claim) for outcome in outcomes) == 1
    assert {each for each in outcomes if isinstance(each, str)} == {won.record.request_id}


async def test_a_refused_call_frees_its_key_and_a_stored_one_never(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(idempotency, "SETTLES_S", 0.0)
    keys = await make()
    first = await keys.claim(WHO, "r1", FAR)
    assert isinstance(first, Claim)
    await keys.free(first)
    second = await keys.claim(WHO, "r2", FAR)
    assert isinstance(second, Claim)
    await keys.stored(second)
    await keys.free(first)  # late: it is not its own any more
    assert await keys.claim(WHO, "r3", FAR) == "r2"


async def test_another_body_conflicts_and_names_the_request(make: Make) -> None:
    keys = await make()
    assert isinstance(await keys.claim(WHO, "r1", FAR), Claim)
    with pytest.raises(HeadraceError, match="'r1'") as refused:
        await keys.claim(Identity(key="k1", body="other"), "r2", FAR)
    assert refused.value.info.code is ErrorCode.CONFLICT
    assert refused.value.info.field == "idempotency_key"


async def abandoned(make: Make, age_s: float) -> None:
    """A key whose ingress died before its request was stored."""
    bucket = await (await make())._open()
    record = IdempotencyRecord(
        request_id="dead", body_sha256="b1", created_ms=now_ms() - age_s * 1000
    )
    await bucket.put("k1", record.model_dump_json().encode())


async def test_what_never_was_stored_is_taken_over_by_exactly_one(make: Make) -> None:
    await abandoned(make, age_s=16)
    one, two = await make(), await make()
    bodies = (one.claim(WHO, "r1", now_ms() + 1000), two.claim(WHO, "r2", now_ms() + 1000))
    outcomes = await asyncio.gather(*bodies, return_exceptions=True)
    assert sum(isinstance(outcome, Claim) for outcome in outcomes) == 1
    [loser] = [outcome for outcome in outcomes if not isinstance(outcome, Claim)]
    assert isinstance(loser, HeadraceError)  # the winner is not stored yet
    assert loser.info.code is ErrorCode.NO_CAPACITY


async def test_a_first_call_that_is_being_admitted_is_waited_for(
    make: Make, accepted: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    await abandoned(make, age_s=1)
    keys = await make()
    monkeypatch.setattr(idempotency, "WAIT_S", 0.3)
    with pytest.raises(HeadraceError, match="still being admitted"):
        await keys.claim(WHO, "r1", FAR)
    monkeypatch.setattr(idempotency, "WAIT_S", 30.0)
    waiting = asyncio.ensure_future(keys.claim(WHO, "r1", FAR))
    accepted.add("dead")  # it was stored after all, only its mark is missing
    assert await asyncio.wait_for(waiting, 20) == "dead"


# Through ingress


async def repeat(bus: Bus, **changes: Any) -> Settled:
    body = {"prompt": "Hello", "idempotency_key": "once"} | changes.pop("body", {})
    return await bus.request(subjects.ingress(0), door_call(body, **changes), Settled, 20)


async def test_a_repeated_call_is_admitted_once_whichever_door_it_takes(
    ingress: IngressService, neighbours: Neighbours, bus: Bus, acme: Client
) -> None:
    first = await repeat(bus)
    [work] = neighbours.admitted
    await neighbours.record(work)
    again = await repeat(bus)
    assert (again.same_as, again.tenant, again.admitted) == (work.request_id, "acme", None)
    assert first.same_as is None
    body = json.dumps({"prompt": "Hello", "idempotency_key": "once"}).encode()
    await acme.publish("headrace.v1.acme.generate", body, reply="_INBOX_acme.mine", headers=AUTH)
    call = await asyncio.wait_for(neighbours.resumed.get(), 20)
    assert (call.request_id, call.offset, call.reply) == (work.request_id, 0, "_INBOX_acme.mine")
    assert len(neighbours.admitted) == 1
    assert neighbours.opened == []
    assert ingress.counters()["repeats"] == 2


async def test_another_body_and_another_tenant(
    ingress: IngressService, neighbours: Neighbours, bus: Bus
) -> None:
    assert (await repeat(bus)).admitted is not None
    conflict = await repeat(bus, body={"prompt": "Bye"})
    assert conflict.error is not None
    assert conflict.error.code is ErrorCode.CONFLICT
    assert (await repeat(bus, api_key=OTHER_KEY)).admitted is not None
    assert len(neighbours.admitted) == 2


async def test_a_refused_call_may_be_repeated_at_once(
    ingress: IngressService, neighbours: Neighbours, bus: Bus
) -> None:
    neighbours.refusal = HeadraceError(ErrorCode.SATURATED, "full", retry_after_s=1.0)
    refused = await repeat(bus)
    assert refused.error == neighbours.refusal.info
    neighbours.refusal = None
    assert (await repeat(bus)).admitted is not None
