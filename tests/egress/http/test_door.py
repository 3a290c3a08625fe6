"""The HTTP door with unmodified `openai` clients; the test plays ingress and executor."""

import asyncio
import contextlib
import json
import socket
from typing import Any

import httpx2
import msgspec
import openai
import pytest

from contracts import subjects
from contracts.client import FinishReason, ModelCard, ModelList
from contracts.errors import ErrorCode, ErrorInfo, HeadraceError
from contracts.internal import ClientCall, Settled
from stages.egress.http import schemas
from tests.egress.builders import make_item, make_terms
from tests.egress.conftest import World
from tests.support.waiting import eventually

HELLO: Any = [{"role": "user", "content": "Hello"}]
CHAT = "/v1/chat/completions"


async def calls(world: World, count: int = 1) -> list[str]:
    """The request ids of the calls that ingress has got, in the order of choices."""
    await eventually(lambda: len(world.calls) >= count)
    return [call.request_id for call in sorted(world.calls, key=lambda call: call.choice)]


async def test_a_whole_chat(world: World, client: openai.AsyncOpenAI) -> None:
    asking = asyncio.ensure_future(
        client.chat.completions.with_raw_response.create(
            model="letters", messages=HELLO, seed=5, max_completion_tokens=9
        )
    )
    (request_id,) = await calls(world)
    await world.send(make_item("Hel", 0, request_id=request_id))
    item = make_item("lo", 3, request_id=request_id, finish="stop")
    await world.send(msgspec.structs.replace(item, fingerprint="fp"))
    raw = await asking
    answer = schemas.ChatCompletion.model_validate_json(raw.content)
    assert (answer.id, answer.choices[0].message.content) == (request_id, "Hello")
    assert answer.choices[0].finish_reason == "stop"
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (7, 5)
    assert answer.system_fingerprint == "fp"
    assert raw.headers["x-request-id"] == request_id
    assert raw.headers["x-headrace-pool"] == "small"
    (call,) = world.calls
    assert (call.door, call.verb, call.api_key, call.tenant) == ("http", "chat", "secret", None)
    assert json.loads(call.body) == {
        "model": "letters",
        "messages": HELLO,
        "seed": 5,
        "max_tokens": 9,
        "priority": "normal",
    }
    (receipt,) = await world.receipts(1)
    assert receipt.request_id == request_id


async def test_a_stream_with_usage(world: World, client: openai.AsyncOpenAI) -> None:
    asking = asyncio.ensure_future(
        client.completions.create(
            model="letters", prompt="a", stream=True, stream_options={"include_usage": True}
        )
    )
    (request_id,) = await calls(world)
    await world.send(make_item("b", 0, request_id=request_id))
    stream = await asking
    first = await anext(stream)
    assert (first.choices[0].text, first.usage) == ("b", None)
    await world.send(make_item("c", 1, request_id=request_id, finish="length"))
    rest = [chunk async for chunk in stream]
    assert [chunk.choices[0].text for chunk in rest[:-1]] == ["c", ""]
    assert rest[-2].choices[0].finish_reason == "length"
    assert rest[-1].choices == []
    assert rest[-1].usage is not None
    assert rest[-1].usage.completion_tokens == 2


async def test_n_answers_are_requests_of_their_own(
    world: World, client: openai.AsyncOpenAI
) -> None:
    asking = asyncio.ensure_future(
        client.chat.completions.create(model="letters", messages=HELLO, n=3, seed=10)
    )
    ids = await calls(world, 3)
    assert [call.choice for call in world.calls][-1] == 0  # its prompt is billed: it comes last
    told = {call.choice: (call.sibling_of, json.loads(call.body)["seed"]) for call in world.calls}
    assert told == {0: (None, 10), 1: (ids[0], 11), 2: (ids[0], 12)}
    for index in (2, 0, 1):
        await world.send(make_item("abc"[index], 0, request_id=ids[index], finish="stop"))
    answer = await asking
    assert [each.message.content for each in answer.choices] == ["a", "b", "c"]
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (7, 3)
    assert len({receipt.request_id for receipt in await world.receipts(3)}) == 3


async def test_all_answers_are_admitted_or_none(world: World, client: openai.AsyncOpenAI) -> None:
    full = ErrorInfo(code=ErrorCode.SATURATED, message="full", retry_after_s=1.5)

    def answer(call: ClientCall) -> Settled:
        if call.choice == 2:
            return Settled(request_id=call.request_id, error=full)
        return Settled(request_id=call.request_id, admitted=make_terms(call.request_id))

    world.answer = answer
    with pytest.raises(openai.RateLimitError) as refused:
        await client.chat.completions.create(model="letters", messages=HELLO, n=4)
    assert refused.value.code == "saturated"
    assert sorted(call.choice for call in world.calls) == [1, 2, 3]  # nothing bills the prompt
    receipts = await world.receipts(2)
    assert {receipt.finish_reason for receipt in receipts} == {FinishReason.CANCELLED}
    assert [receipt.completion_tokens for receipt in receipts] == [0, 0]


@pytest.mark.parametrize(
    ("code", "field", "kind", "said"),
    [
        (ErrorCode.UNAUTHENTICATED, None, openai.AuthenticationError, "invalid_api_key"),
        (ErrorCode.PERMISSION_DENIED, None, openai.PermissionDeniedError, "permission_denied"),
        (ErrorCode.NOT_FOUND, "model", openai.NotFoundError, "model_not_found"),
        (ErrorCode.INVALID_REQUEST, "seed", openai.BadRequestError, "invalid_request"),
        (
            ErrorCode.CONTEXT_LENGTH_EXCEEDED,
            "messages",
            openai.BadRequestError,
            "context_length_exceeded",
        ),
        (ErrorCode.CONFLICT, None, openai.ConflictError, "conflict"),
        (ErrorCode.SATURATED, None, openai.RateLimitError, "saturated"),
        (ErrorCode.NO_CAPACITY, None, openai.InternalServerError, "no_capacity"),
        (ErrorCode.DEADLINE_EXCEEDED, None, openai.InternalServerError, "deadline_exceeded"),
    ],
)
async def test_typed_errors(
    world: World,
    client: openai.AsyncOpenAI,
    code: ErrorCode,
    field: str | None,
    kind: type[openai.APIStatusError],
    said: str,
) -> None:
    info = ErrorInfo(code=code, message="no", field=field)
    world.answer = lambda call: Settled(request_id=call.request_id, error=info)
    with pytest.raises(kind) as refused:
        await client.chat.completions.create(model="letters", messages=HELLO, stream=True)
    error = refused.value
    assert (error.code, error.param, error.request_id) == (said, field, world.calls[0].request_id)


async def test_the_clients_retry_is_told_when(world: World, client: openai.AsyncOpenAI) -> None:
    full = ErrorInfo(code=ErrorCode.SATURATED, message="full", retry_after_s=0.02)

    def answer(call: ClientCall) -> Settled:
        if len(world.calls) == 1:
            return Settled(request_id=call.request_id, error=full)
        return Settled(request_id=call.request_id, admitted=make_terms(call.request_id))

    world.answer = answer
    patient = client.with_options(max_retries=1)
    asking = asyncio.ensure_future(patient.chat.completions.create(model="letters", messages=HELLO))
    await eventually(lambda: len(world.calls) == 2)
    await world.send(make_item("ok", 0, request_id=world.calls[1].request_id, finish="stop"))
    assert (await asking).choices[0].message.content == "ok"


@pytest.mark.parametrize("stream", [True, False])
async def test_what_fails_before_the_first_token_has_its_status(
    world: World, client: openai.AsyncOpenAI, stream: bool
) -> None:
    asking = asyncio.ensure_future(
        client.chat.completions.create(model="letters", messages=HELLO, stream=stream)
    )
    (request_id,) = await calls(world)
    await world.send(make_item("", 0, request_id=request_id, finish="error", error="no memory"))
    with pytest.raises(openai.InternalServerError, match="no memory"):
        await asking


async def test_what_fails_later_ends_the_stream_with_an_error(
    world: World, client: openai.AsyncOpenAI
) -> None:
    asking = asyncio.ensure_future(
        client.chat.completions.create(model="letters", messages=HELLO, stream=True)
    )
    (request_id,) = await calls(world)
    await world.send(make_item("ab", 0, request_id=request_id))
    stream = await asking
    assert (await anext(stream)).choices[0].delta.role == "assistant"
    assert (await anext(stream)).choices[0].delta.content == "ab"
    await world.send(make_item("", 2, request_id=request_id, finish="error", error="no memory"))
    with pytest.raises(openai.APIError, match="no memory"):
        await anext(stream)


async def test_a_deadline_that_passes(world: World, client: openai.AsyncOpenAI) -> None:
    world.answer = lambda call: Settled(
        request_id=call.request_id, admitted=make_terms(call.request_id, deadline_ms=1)
    )
    with pytest.raises(openai.APIStatusError) as late:
        await client.chat.completions.create(model="letters", messages=HELLO)
    assert (late.value.status_code, late.value.code) == (504, "deadline_exceeded")


async def test_a_client_that_leaves_a_stream(world: World, client: openai.AsyncOpenAI) -> None:
    asking = asyncio.ensure_future(
        client.chat.completions.create(model="letters", messages=HELLO, stream=True)
    )
    (request_id,) = await calls(world)
    await world.send(make_item("ab", 0, request_id=request_id))
    stream = await asking
    await anext(stream)
    await stream.close()
    await eventually(lambda: world.notices)
    assert world.notices[0].request_id == request_id
    (receipt,) = await world.receipts(1)
    assert (receipt.finish_reason, receipt.completion_tokens) == (FinishReason.CANCELLED, 2)


async def test_a_client_that_leaves_before_its_whole_answer_pays_no_token(world: World) -> None:
    async with httpx2.AsyncClient(base_url=f"http://{world.http}") as web:
        body = {"model": "letters", "messages": HELLO}
        asking = asyncio.ensure_future(web.post(CHAT, json=body))
        (request_id,) = await calls(world)
        await world.send(make_item("ab", 0, request_id=request_id))
        asking.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asking
    (receipt,) = await world.receipts(1)
    assert (receipt.finish_reason, receipt.completion_tokens) == (FinishReason.CANCELLED, 0)


@pytest.mark.parametrize("buffer_chunks", [16])
async def test_a_client_that_does_not_read_is_cancelled(world: World) -> None:
    host, _, port = world.http.rpartition(":")
    body = json.dumps({"messages": HELLO, "stream": True}).encode()
    with socket.create_connection((host, int(port))) as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        head = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        slow.sendall(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        (request_id,) = await calls(world)
        for step in range(4000):
            await world.send(make_item("x" * 2000, step * 2000, request_id=request_id))
            if world.notices:
                break
        await eventually(lambda: world.notices)
        (receipt,) = await world.receipts(1)
    assert receipt.finish_reason is FinishReason.CANCELLED
    assert receipt.completion_tokens < step * 2000  # what waited is not billed


async def test_models(world: World, client: openai.AsyncOpenAI) -> None:
    await world.ingress.unsubscribe()

    async def answer(call: ClientCall, _: object) -> ModelList:
        if call.api_key != "secret":
            raise HeadraceError(ErrorCode.UNAUTHENTICATED, "no such key")
        return ModelList(models=[ModelCard(id="letters", context=64, pools=["small"])])

    await world.bus.serve(subjects.ingress(0), ClientCall, answer)
    await world.bus.client.flush()
    assert [model.id async for model in client.models.list()] == ["letters"]
    assert (await client.models.retrieve("letters")).owned_by == "headrace"
    with pytest.raises(openai.NotFoundError) as unknown:
        await client.models.retrieve("other")
    assert unknown.value.code == "model_not_found"
    with pytest.raises(openai.AuthenticationError):
        await client.with_options(api_key="wrong").models.list()


async def test_a_drain_lets_streams_end_and_takes_no_new_calls(
    world: World, web: httpx2.AsyncClient, client: openai.AsyncOpenAI
) -> None:
    assert (await web.get("/health")).json() == {"status": "serving"}
    asking = asyncio.ensure_future(
        client.chat.completions.create(model="letters", messages=HELLO, stream=True)
    )
    (request_id,) = await calls(world)
    await world.send(make_item("a", 0, request_id=request_id))
    stream = await asking
    draining = asyncio.ensure_future(world.service.drain())
    host, _, port = world.http.rpartition(":")

    def closed() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex((host, int(port))) != 0

    await eventually(closed)
    await world.send(make_item("b", 1, request_id=request_id, finish="stop"))
    text = [chunk.choices[0].delta.content or "" async for chunk in stream]
    assert "".join(text) == "ab"
    await draining
