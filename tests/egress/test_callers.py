"""The client helper: both doors alike, and what is not an answer of the service."""

import contextlib
import json

import pytest

from contracts.client import Accepted, Chunk, Complete, GenerateRequest, Refused
from contracts.errors import ErrorCode, ErrorInfo
from contracts.internal import Settled
from stages.runtime.client import (
    AccessDenied,
    CannotConnect,
    GrpcCaller,
    NatsCaller,
    NoAnswer,
    TooLarge,
)
from stages.runtime.client import nats_caller as module
from stages.runtime.launch import BusAddress
from tests.egress.builders import make_item
from tests.egress.conftest import World, free_port
from tests.egress.test_nats_door import eventually


def url_of(address: BusAddress) -> str:
    """With the test user's name and password."""
    return address.url.replace("://", f"://{address.user}:{address.password}@")


@pytest.fixture(params=["nats", "grpc"])
async def caller(request: pytest.FixtureRequest, world: World, bus_address: BusAddress):
    connect = (
        NatsCaller.connect(url_of(bus_address), "demo", "secret")
        if request.param == "nats"
        else GrpcCaller.connect(world.grpc, "secret")
    )
    async with await connect as connected:
        yield connected


async def test_both_doors_tell_the_same_story(
    world: World, caller: GrpcCaller | NatsCaller
) -> None:
    request = GenerateRequest(prompt="a", max_tokens=3, stop=["x"])
    async with contextlib.aclosing(caller.generate(request)) as stream:
        first = await anext(stream)
        assert isinstance(first, Accepted)
        assert first.decision.pool == "small"
        await world.send(make_item("ab", 0, request_id=first.request_id))
        await world.send(make_item("c", 2, request_id=first.request_id, finish="length", us=7))
        rest = [answer async for answer in stream]
    assert [type(answer) for answer in rest] == [Chunk, Chunk, Complete]
    ids = [i for a in rest if isinstance(a, Chunk) for i in a.token_ids or ()]
    assert ids == [97, 98, 99]
    last = rest[-1]
    assert isinstance(last, Complete)
    assert last.usage.completion_tokens == len(ids)
    assert list(last.timings.stages) == [
        "ingress", "routing", "queueing", "queue", "prefill", "decode", "egress"
    ]  # fmt: skip
    body = json.loads(world.calls[0].body)
    assert (body["prompt"], body["max_tokens"], body["stop"]) == ("a", 3, ["x"])
    assert "temperature" not in body


async def test_a_refusal_is_an_answer(world: World, caller: GrpcCaller | NatsCaller) -> None:
    error = ErrorInfo(code=ErrorCode.NOT_FOUND, message="no such model", field="model")
    world.answer = lambda call: Settled(request_id=call.request_id, error=error)
    (answer,) = [answer async for answer in caller.chat({"messages": []})]
    assert isinstance(answer, Refused)
    assert answer.error == error


async def test_closing_the_stream_cancels(world: World, caller: GrpcCaller | NatsCaller) -> None:
    async with contextlib.aclosing(caller.generate({"prompt": "a"})) as stream:
        first = await anext(stream)
        assert isinstance(first, Accepted)
    await world.send(make_item("a", 0, request_id=first.request_id))
    await eventually(lambda: world.notices)


async def test_too_large_is_said_before_anything_is_sent(
    world: World, caller: GrpcCaller | NatsCaller
) -> None:
    with pytest.raises(TooLarge, match="at most"):
        await anext(caller.generate({"prompt": "a" * 9_000_000}))
    assert isinstance(await anext(caller.generate({"prompt": "a"})), Accepted)
    assert len(world.calls) == 1


async def test_silence_is_an_error(world: World, caller: GrpcCaller | NatsCaller) -> None:
    kinds = set()

    async def listen() -> None:
        async for answer in caller.generate({"prompt": "a"}, timeout_s=2):
            kinds.add(answer.type)

    with pytest.raises(NoAnswer):
        await listen()
    assert "accepted" in kinds  # and on NATS, heartbeats


async def test_nobody_there(bus_address: BusAddress, monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    with pytest.raises(CannotConnect, match="gRPC"):
        await GrpcCaller.connect(f"127.0.0.1:{port}", "k")
    with pytest.raises(CannotConnect, match="NATS"):
        await NatsCaller.connect(f"nats://127.0.0.1:{port}", "demo", "k")
    async with await NatsCaller.connect(url_of(bus_address), "demo", "k") as caller:
        with pytest.raises(CannotConnect, match="nobody serves"):
            await anext(caller.generate({"prompt": "a"}))
        with pytest.raises(CannotConnect, match="nobody serves"):
            await caller.models()
    monkeypatch.setattr(module, "CONNECT_TIMEOUT_S", 0.2)
    with pytest.raises(AccessDenied, match="tenant 'demo'"):
        await NatsCaller.connect(bus_address.url, "demo", "k")  # the server knows no such user
