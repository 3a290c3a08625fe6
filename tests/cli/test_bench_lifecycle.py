"""The clients of `bench lifecycle` notice what they are there to notice."""

import json

import httpx2
import pytest

from contracts.client import Chunk, Complete, Cost, Decision, FinishReason, Timings, Usage
from stages.cli.bench.lifecycle.call import Call
from stages.cli.bench.lifecycle.http_call import HttpCaller


def chunk(offset: int, *ids: int) -> Chunk:
    """New tokens."""
    text = "".join(f"<{each}>" for each in ids)
    return Chunk(seq=0, offset=offset, text=text, token_ids=list(ids))


def complete(tokens: int, reason: FinishReason = FinishReason.LENGTH) -> Complete:
    """A terminal."""
    return Complete(
        request_id="r1",
        finish_reason=reason,
        usage=Usage(
            prompt_tokens=3, cached_tokens=0, completion_tokens=tokens, total_tokens=3 + tokens
        ),
        cost=Cost(amount=0, currency="USD", accelerator_s=0),
        timings=Timings(e2e_ms=1),
        decision=Decision(route="r", pool="p", model="m", reason="route"),
    )


def test_a_whole_stream_is_fine() -> None:
    call = Call("grpc", 0, 4)
    call.accept("r1")
    for each in (chunk(0, 1, 2), chunk(2, 3), chunk(3, 4), complete(4)):
        call.take(each)
    assert (call.ids, call.text, call.usage) == ([1, 2, 3, 4], "<1><2><3><4>", (3, 4))
    assert (call.problem, call.repeats) == (None, [])


@pytest.mark.parametrize("offset", [1, 3])
def test_an_offset_that_repeats_or_leaves_out_is_noticed(offset: int) -> None:
    call = Call("nats", 0, 4)
    call.take(chunk(0, 1, 2))
    call.take(chunk(offset, 3))
    assert call.repeats


@pytest.mark.parametrize(
    "end", [complete(3), complete(4, FinishReason.ERROR), complete(4, FinishReason.CANCELLED)]
)
def test_a_terminal_that_is_not_good_is_a_problem(end: Complete) -> None:
    call = Call("grpc", 0, 4)
    call.take(end)
    assert call.problem is not None


def event(text: str, place: int, reason: str | None = None) -> str:
    """A server-sent event of a plain completion."""
    body = {"choices": [{"index": 0, "text": text, "finish_reason": reason}], "usage": None}
    return f"id: r1:{place}\ndata: {json.dumps(body)}\n\n"


TAIL = (
    event("", 3, "length")
    + 'data: {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 3}}\n\n'
    + "data: [DONE]\n\n"
)


async def run(*bodies: str) -> tuple[Call, list[httpx2.Request]]:
    """A call whose connections bring these bodies, one after the other."""
    asked: list[httpx2.Request] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        asked.append(request)
        headers = {"x-request-id": "r1", "content-type": "text/event-stream"}
        return httpx2.Response(200, headers=headers, text=bodies[len(asked) - 1])

    caller = HttpCaller("http://door/v1", "key", httpx2.MockTransport(answer))
    call = Call("http", 0, 3)
    await caller.run(call, {"prompt": "p"}, 10.0)
    await caller.close()
    return call, asked


async def test_a_broken_http_stream_goes_on_after_the_last_event() -> None:
    call, (first, second) = await run(event("a", 1) + event("b", 2), event("c", 3) + TAIL)
    assert (call.text, call.problem, call.repeats) == ("abc", None, [])
    assert (call.resumed, call.usage) == (1, (3, 3))
    assert first.method == "POST"
    assert second.headers["last-event-id"] == "r1:2"
    assert second.url.path == "/v1/completions/r1"


async def test_an_event_that_comes_again_is_noticed() -> None:
    call, _ = await run(event("a", 1) + event("b", 2), event("b", 2) + event("c", 3) + TAIL)
    assert call.repeats


async def test_an_error_event_is_a_problem() -> None:
    call, _ = await run(event("a", 1) + 'data: {"error": {"code": "x", "message": "why"}}\n\n')
    assert call.problem is not None
    assert "why" in call.problem
