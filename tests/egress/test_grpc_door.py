"""The gRPC door, with real clients."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any, cast

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from contracts import headrace_pb2 as pb
from contracts import subjects
from contracts.client import (
    MAX_REQUEST_BYTES,
    Accepted,
    CancelReply,
    ChatRequest,
    Chunk,
    Complete,
    FinishReason,
    GenerateRequest,
    Message,
    ModelCard,
    ModelList,
    Refused,
)
from contracts.errors import ErrorCode, ErrorInfo, HeadraceError
from contracts.internal import ClientCall, Settled
from stages.egress import admission, grpc_door
from stages.egress.resuming import Resuming
from stages.runtime.client import GrpcCaller, TooLarge
from stages.runtime.clock import now_ms
from tests.egress.builders import make_item
from tests.egress.conftest import EGRESS, Answer, World, free_port
from tests.egress.test_nats_door import eventually

HELLO = ChatRequest(messages=[Message(role="user", content="Hello")])


@pytest.fixture
async def caller(world: World) -> AsyncIterator[GrpcCaller]:
    async with await GrpcCaller.connect(world.grpc, "secret", "demo") as connected:
        yield connected


async def begun(world: World, stream: Any) -> str:
    """The request id of an accepted stream."""
    first = await anext(stream)
    assert isinstance(first, Accepted)
    return first.request_id


async def test_a_chat_streams_and_ends_once(world: World, caller: GrpcCaller) -> None:
    stream = caller.chat(HELLO)
    request_id = await begun(world, stream)
    await world.send(make_item("He", 0, request_id=request_id))
    await world.send(make_item("llo", 2, request_id=request_id, finish="stop"))
    answers = [answer async for answer in stream]
    assert [type(answer) for answer in answers] == [Chunk, Chunk, Complete]
    assert "".join(a.text for a in answers if isinstance(a, Chunk)) == "Hello"
    last = answers[-1]
    assert isinstance(last, Complete)
    assert last.usage.completion_tokens == 5
    assert list(last.timings.stages)[:3] == ["ingress", "routing", "queueing"]
    (receipt,) = await world.receipts(1)
    assert (receipt.request_id, receipt.door) == (request_id, "grpc")


async def test_ingress_sees_what_was_set_and_nothing_else(world: World, caller: GrpcCaller) -> None:
    request = {
        "prompt": "a",
        "temperature": 0.0,
        "max_tokens": 0,
        "stop": ["x"],
        "ignore_eos": False,
    }
    async with contextlib.aclosing(caller.generate(request)) as stream:
        await begun(world, stream)
    (call,) = world.calls
    expected = {**request, "metadata": {}}
    assert json.loads(call.body) == expected
    assert (call.api_key, call.tenant, call.verb, call.door) == (
        "secret",
        "demo",
        "generate",
        "grpc",
    )


async def test_the_clients_deadline_becomes_absolute(world: World, caller: GrpcCaller) -> None:
    message = pb.GenerateRequest(prompt="a").SerializeToString()
    before = now_ms()
    stream = caller.stream("generate", message, deadline_s=2)
    await begun(world, stream)
    told = json.loads(world.calls[0].body)["deadline_unix_ms"]
    assert before <= told <= now_ms() + 2000 + 100  # gRPC rounds it up on its way
    with pytest.raises(Exception, match="DEADLINE_EXCEEDED"):
        await anext(stream)
    (receipt,) = await world.receipts(1)
    assert receipt.finish_reason is FinishReason.TIMEOUT


async def test_a_refusal_has_status_error_and_retry_info(world: World) -> None:
    full = ErrorInfo(code=ErrorCode.SATURATED, message="full", retry_after_s=2.5, position=9)
    world.answer = lambda call: Settled(request_id=call.request_id, error=full)
    async with grpc.aio.insecure_channel(world.grpc) as channel:
        call = channel.unary_stream("/headrace.v1.Headrace/Chat")(
            pb.ChatRequest().SerializeToString()
        )
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await call.read()
    assert error.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert error.value.details() == "full"
    trailers = dict(error.value.trailing_metadata() or ())
    assert ErrorInfo.model_validate_json(trailers["headrace-error-bin"]) == full
    details = pb.StatusDetails.FromString(trailers["grpc-status-details-bin"])
    assert details.details[0].type_url == "type.googleapis.com/google.rpc.RetryInfo"
    delay = pb.RetryInfo.FromString(details.details[0].value).retry_delay
    assert delay.ToMilliseconds() == 2500


async def test_an_error_raised_by_ingress_is_the_callers(world: World, caller: GrpcCaller) -> None:
    def refuse(_: ClientCall) -> Settled:
        raise HeadraceError(ErrorCode.UNAUTHENTICATED, "no such key")

    world.answer = refuse
    (answer,) = [answer async for answer in caller.chat(HELLO)]
    assert isinstance(answer, Refused)
    assert answer.error.code is ErrorCode.UNAUTHENTICATED
    assert answer.request_id == world.calls[0].request_id


@pytest.mark.parametrize(
    ("message", "says"),
    [
        (b"\x0a\x02\xff\xfe", "UTF-8"),
        (b"\xff\xff\xff", "not a valid GenerateRequest"),
        (b"\x98\x06\x01", "field number 99"),
        (pb.GenerateRequest(prompt='"' * (MAX_REQUEST_BYTES // 2)).SerializeToString(), "bytes"),
    ],
)
async def test_what_cannot_be_read_is_invalid(
    world: World, caller: GrpcCaller, message: bytes, says: str
) -> None:
    (answer,) = [answer async for answer in caller.stream("generate", message)]
    assert isinstance(answer, Refused)
    assert answer.error.code is ErrorCode.INVALID_REQUEST
    assert says in answer.error.message
    assert world.calls == []


async def test_nine_megabytes_are_refused_by_helper_and_door(
    world: World, caller: GrpcCaller
) -> None:
    nine = pb.GenerateRequest(prompt="a" * 9_000_000).SerializeToString()
    with pytest.raises(TooLarge):
        await anext(caller.stream("generate", nine))
    async with grpc.aio.insecure_channel(world.grpc) as channel:
        call = channel.unary_stream("/headrace.v1.Headrace/Generate")(nine)
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await call.read()
    assert error.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "at most" in str(error.value.details())


async def test_a_client_that_leaves_is_cancelled(world: World, caller: GrpcCaller) -> None:
    async with contextlib.aclosing(caller.chat(HELLO)) as stream:
        request_id = await begun(world, stream)
    await eventually(lambda: world.notices)
    assert (world.notices[0].request_id, world.notices[0].orphan) == (request_id, False)
    (receipt,) = await world.receipts(1)
    assert receipt.finish_reason is FinishReason.CANCELLED


async def test_usage_is_in_the_trailers_and_failures_have_a_status(world: World) -> None:
    async with grpc.aio.insecure_channel(world.grpc) as channel:
        method = channel.unary_stream("/headrace.v1.Headrace/Generate", None, pb.Answer.FromString)
        call = method(pb.GenerateRequest(prompt="a").SerializeToString())
        request_id = (await call.read()).accepted.request_id
        failed = make_item("ab", 0, request_id=request_id, finish="error", error="out of memory")
        await world.send(failed)
        assert (await call.read()).chunk.text == "ab"
        assert (await call.read()).complete.error.message == "out of memory"
        assert await call.code() is grpc.StatusCode.INTERNAL
        trailers = dict(await call.trailing_metadata() or ())
    assert json.loads(trailers["headrace-usage"])["completion_tokens"] == 2
    assert trailers["headrace-request-id"] == request_id


async def test_cancel_and_models_go_through_ingress(world: World, caller: GrpcCaller) -> None:
    await world.ingress.unsubscribe()

    async def answer(call: ClientCall, _: object) -> ModelList | CancelReply:
        if call.verb == "models":
            card = ModelCard(id="letters", context=64, pools=["small"])
            return ModelList(models=[card])
        if json.loads(call.body)["request_id"] != "known":
            raise HeadraceError(ErrorCode.NOT_FOUND, "no running request")
        return CancelReply(request_id="known")

    await world.bus.serve(subjects.ingress(0), ClientCall, answer)
    await world.bus.client.flush()
    models = await caller.models()
    assert isinstance(models, ModelList)
    assert models.models[0].context == 64
    assert await caller.cancel("known") == CancelReply(request_id="known")
    refused = await caller.cancel("foreign")
    assert isinstance(refused, Refused)
    assert refused.error.code is ErrorCode.NOT_FOUND


async def test_an_answer_of_ingress_that_cannot_be_read_ends_the_stream(
    world: World, caller: GrpcCaller
) -> None:
    world.answer = cast("Answer", lambda _: CancelReply(request_id="x"))
    stream = caller.stream("generate", pb.GenerateRequest(prompt="a" * 100_000).SerializeToString())
    (answer,) = [answer async for answer in stream]
    assert isinstance(answer, Refused)
    assert answer.error.code is ErrorCode.INTERNAL
    await eventually(lambda: world.notices)
    assert world.notices[0].orphan  # it may have been stored


async def test_more_calls_than_the_bound_are_refused(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grpc_door, "CALLS_AT_ONCE", 1)
    address = f"127.0.0.1:{free_port()}"
    sessions = world.service._sessions
    door = grpc_door.GrpcDoor(world.bus, sessions, Resuming(sessions), EGRESS, address, 16)
    await door.start()
    async with grpc.aio.insecure_channel(address) as channel:
        method = channel.unary_stream("/headrace.v1.Headrace/Generate", None, pb.Answer.FromString)
        first = method(pb.GenerateRequest(prompt="a").SerializeToString())
        await first.read()
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await method(pb.GenerateRequest(prompt="a").SerializeToString()).read()
        first.cancel()
    assert error.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    await door.stop(0)


async def test_an_ingress_that_is_restarted_is_waited_for(world: World, caller: GrpcCaller) -> None:
    await world.ingress.unsubscribe()
    await world.bus.client.flush()
    answers = caller.generate(GenerateRequest(prompt="a"))
    first = asyncio.ensure_future(anext(answers))
    await asyncio.sleep(0.3)  # it has been told that nobody serves
    assert not first.done()
    await world.bus.serve(subjects.ingress(0), ClientCall, world._on_call)
    assert (await asyncio.wait_for(first, 20)).type == "accepted"
    await answers.aclose()


async def test_nobody_to_admit_is_no_capacity(
    world: World, caller: GrpcCaller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission, "ADMIT_TIMEOUT_S", 1.2)  # tries end at 0.2 s
    await world.ingress.unsubscribe()
    await world.bus.client.flush()
    (answer,) = [answer async for answer in caller.generate(GenerateRequest(prompt="a"))]
    assert isinstance(answer, Refused)
    assert answer.error.code is ErrorCode.NO_CAPACITY


async def test_health_and_reflection(world: World) -> None:
    async with grpc.aio.insecure_channel(world.grpc) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        request = health_pb2.HealthCheckRequest(service="headrace.v1.Headrace")
        assert (await health.Check(request)).status == health_pb2.HealthCheckResponse.SERVING
        watch = health.Watch(request)
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
        reflection = reflection_pb2_grpc.ServerReflectionStub(channel)
        ask = reflection.ServerReflectionInfo()
        await ask.write(reflection_pb2.ServerReflectionRequest(list_services=""))
        names = {each.name for each in (await ask.read()).list_services_response.service}
        assert "headrace.v1.Headrace" in names
        await ask.done_writing()
        draining = asyncio.ensure_future(world.service.drain())
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
    await draining


@pytest.mark.parametrize("buffer_chunks", [16])
async def test_a_client_that_does_not_read_is_cancelled(world: World) -> None:
    options = [("grpc.http2.lookahead_bytes", 1024), ("grpc.http2.bdp_probe", 0)]
    async with grpc.aio.insecure_channel(world.grpc, options=options) as channel:
        method = channel.unary_stream("/headrace.v1.Headrace/Generate", None, pb.Answer.FromString)
        call = method(pb.GenerateRequest(prompt="a").SerializeToString())
        request_id = (await call.read()).accepted.request_id
        for step in range(400):
            await world.send(make_item("x" * 2000, step * 2000, request_id=request_id))
            if world.notices:
                break
        await eventually(lambda: world.notices)
        (receipt,) = await world.receipts(1)
        assert receipt.finish_reason is FinishReason.CANCELLED
        assert receipt.completion_tokens < (step - 10) * 2000  # what waited is not billed
        call.cancel()
