"""Reading on: by `Last-Event-ID`, and an answer again by its id."""

import asyncio
import json
from collections.abc import AsyncIterator

import httpx2
import openai
import pytest
from nats.aio.msg import Msg

from contracts import subjects
from contracts.client import ResumeRequest
from contracts.errors import ErrorCode, ErrorInfo, HeadraceError
from contracts.internal import AdmitReply, ClientCall, Settled, Stamps
from stages.egress.http import schemas
from stages.runtime.clock import now_ms
from stages.runtime.streams import ensure_streams
from tests.egress.builders import make_item, make_terms, make_topology
from tests.egress.conftest import World
from tests.egress.http.test_door import CHAT, HELLO, calls

STREAM = {"messages": HELLO, "stream": True, "stream_options": {"include_usage": True}}


def lasting(request_id: str) -> AdmitReply:
    """Terms of a request that waits for its client."""
    terms = make_terms(request_id)
    stamps = Stamps(received=now_ms())
    work = terms.work.model_copy(update={"resume_window_ms": 60_000, "stamps": stamps})
    return terms.model_copy(update={"work": work})


@pytest.fixture
async def known(world: World) -> World:
    """An ingress that knows who resumes, by the key; records of sessions are kept."""
    await world.ingress.unsubscribe()
    await ensure_streams(world.bus.js, make_topology())

    async def answer(call: ClientCall, _: Msg) -> Settled:
        world.calls.append(call)
        if call.verb != "resume":
            return Settled(request_id=call.request_id, admitted=lasting(call.request_id))
        wanted = ResumeRequest.model_validate_json(call.body).request_id
        if call.api_key != "secret":
            raise HeadraceError(ErrorCode.UNAUTHENTICATED, "no such key")
        return Settled(request_id=call.request_id, same_as=wanted, tenant="demo")

    world.ingress = await world.bus.serve(subjects.ingress(0), ClientCall, answer)
    await world.bus.client.flush()
    return world


async def lines(response: httpx2.Response) -> AsyncIterator[str]:
    async for line in response.aiter_lines():
        if line:
            yield line


async def event(events: AsyncIterator[str]) -> tuple[str, dict[str, object]]:
    """The next event that has an id, and its data."""
    async for line in events:
        if line.startswith("id: "):
            data = await anext(events)
            return line[4:], json.loads(data[6:])
    raise AssertionError("the stream has ended")


def text_of(body: str) -> str:
    """All text of a stream."""
    data = [line[6:] for line in body.splitlines() if line.startswith("data: {")]
    chunks = [schemas.ChatChunk.model_validate_json(each) for each in data]
    return "".join(each.choices[0].delta.content or "" for each in chunks if each.choices)


@pytest.mark.parametrize("method", ["POST", "GET"])
async def test_a_stream_goes_on_after_the_last_event(
    known: World, web: httpx2.AsyncClient, method: str
) -> None:
    async def first_tokens() -> str:
        (request_id,) = await calls(known)
        await known.send(make_item("ab", 0, request_id=request_id))
        return request_id

    beginning = asyncio.ensure_future(first_tokens())
    async with web.stream("POST", CHAT, json=STREAM) as response:
        last_id, _ = await event(lines(response))
    request_id = await beginning
    await known.send(make_item("cd", 2, request_id=request_id))
    headers = {"last-event-id": last_id}
    one = f"{CHAT}/{request_id}?stream=true&include_usage=true"
    body = STREAM if method == "POST" else None
    path = CHAT if method == "POST" else one
    async with web.stream(method, path, json=body, headers=headers) as response:
        assert response.headers["x-request-id"] == request_id
        events = lines(response)
        _, data = await event(events)
        assert data["id"] == request_id
        await known.send(make_item("ef", 4, request_id=request_id, finish="stop"))
        rest = "\n".join([f"data: {json.dumps(data)}", *[line async for line in events]])
    assert text_of(rest) == "cdef"
    assert '"role"' not in rest
    assert rest.endswith("data: [DONE]")


async def test_a_finished_answer_can_be_read_again(
    known: World, client: openai.AsyncOpenAI, web: httpx2.AsyncClient
) -> None:
    asking = asyncio.ensure_future(client.chat.completions.create(model="letters", messages=HELLO))
    (request_id,) = await calls(known)
    await known.send(make_item("abc", 0, request_id=request_id, finish="stop"))
    answer = await asking
    again = await web.get(f"{CHAT}/{request_id}")
    told = schemas.ChatCompletion.model_validate_json(again.content)
    assert (told.id, told.choices[0].message.content) == (request_id, "abc")
    assert answer.usage is not None
    assert told.usage.completion_tokens == answer.usage.completion_tokens
    whole = await web.get(f"{CHAT}/{request_id}?stream=true")
    assert text_of(whole.text) == "abc"
    rest = await web.get(
        f"{CHAT}/{request_id}?stream=true", headers={"last-event-id": f"{request_id}:2"}
    )
    assert text_of(rest.text) == "c"
    as_text = await web.get(f"/v1/completions/{request_id}")
    assert schemas.TextCompletion.model_validate_json(as_text.content).choices[0].text == "abc"


@pytest.mark.parametrize("odd", ["%F0%94%A6%9D", "x" * 200, "%00", "*"])
async def test_an_id_that_never_was(known: World, web: httpx2.AsyncClient, odd: str) -> None:
    refused = ErrorInfo(code=ErrorCode.NOT_FOUND, message="no such request", field="request_id")
    await known.ingress.unsubscribe()

    async def answer(call: ClientCall, _: Msg) -> Settled:
        return Settled(request_id=call.request_id, error=refused)

    await known.bus.serve(subjects.ingress(0), ClientCall, answer)
    await known.bus.client.flush()
    response = await web.get(f"{CHAT}/{odd}")
    assert response.status_code == 404
    assert schemas.ErrorEnvelope.model_validate_json(response.content).error.param == "request_id"
    assert len(response.headers["x-request-id"]) == 36


async def test_who_may_not_resume(known: World, web: httpx2.AsyncClient) -> None:
    wrong = await web.get(f"{CHAT}/x", headers={"authorization": "Bearer other"})
    assert wrong.status_code == 401
    several = await web.post(CHAT, json=STREAM | {"n": 2}, headers={"last-event-id": "x:1"})
    assert (several.status_code, several.json()["error"]["param"]) == (400, "n")
    other = await web.get(f"{CHAT}/y", headers={"last-event-id": "x:1"})
    assert other.json()["error"]["param"] == "Last-Event-ID"
