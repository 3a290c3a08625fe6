"""Events, their ids, and what a stream says at its end."""

import json
from typing import Any

import pytest

from contracts.client import Complete, Cost, Decision, FinishReason, Queued, Timings, Usage
from contracts.errors import ErrorCode, ErrorInfo
from contracts.internal import Verb
from stages.egress.http import schemas
from stages.egress.http.errors import HttpError, problem
from stages.egress.http.forms import Form, created_s
from stages.egress.http.sse import DONE, EventWriter, read_event_id
from stages.egress.output import ChunkOut
from stages.runtime.clock import new_request_id, now_ms

DECISION = Decision(route="r", pool="p", model="m", reason="x")


def complete(reason: FinishReason = FinishReason.STOP, tokens: int = 2) -> Complete:
    return Complete(
        request_id="r1",
        finish_reason=reason,
        usage=Usage(
            prompt_tokens=7, cached_tokens=1, completion_tokens=tokens, total_tokens=7 + tokens
        ),
        cost=Cost(amount=0, currency="USD", accelerator_s=0),
        timings=Timings(e2e_ms=1),
        decision=DECISION,
    )


def writer(verb: Verb = "chat", n: int = 1, **options: Any) -> EventWriter:
    usage = options.pop("usage", False)
    form = Form(verb, "r1", "m", "default").chunks(usage)
    request_id = "r1" if n == 1 else None
    options = {"request_id": request_id, "usage": usage} | options
    return EventWriter(form, n, **options)


def chunk(text: str, offset: int = 0) -> ChunkOut:
    return ChunkOut(0, offset, text, None, offset + len(text))


def data(events: bytes) -> list[Any]:
    lines = [line for line in events.decode().split("\n") if line.startswith("data: ")]
    return [json.loads(line[6:]) for line in lines if line != "data: [DONE]"]


def test_a_chat_stream() -> None:
    events = writer(usage=True)
    said = events.take(0, Queued(position=3))
    assert said == b": queued, 3 before this one\n"  # no empty line: it is no event
    said = events.take(0, chunk("Hé")) + events.take(0, chunk("\n", 2)) + events.take(0, complete())
    assert events.over
    assert said.endswith(b"\n\n" + DONE)
    chunks = [schemas.ChatChunk.model_validate(each) for each in data(said)]
    assert [each.choices[0].delta.content for each in chunks[:-1]] == ["", "Hé", "\n", None]
    assert [each.choices[0].finish_reason for each in chunks[:-1]] == [None, None, None, "stop"]
    assert all(each["usage"] is None for each in data(said)[:-1])
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.total_tokens == 9
    ids = [line for line in said.decode().split("\n") if line.startswith("id: ")]
    assert ids == ["id: r1:2", "id: r1:3", "id: r1:3"]


def test_a_text_stream() -> None:
    events = writer("generate")
    said = events.take(0, chunk("ab")) + events.take(0, complete(FinishReason.LENGTH))
    chunks = [schemas.TextChunk.model_validate(each) for each in data(said)]
    assert [each.choices[0].text for each in chunks] == ["ab", ""]
    assert chunks[-1].choices[0].finish_reason == "length"
    assert "usage" not in data(said)[0]


def test_a_resumed_stream_does_not_begin_again() -> None:
    events = writer(start=3)
    (only,) = data(events.take(0, chunk("c", 2)))
    assert only["choices"][0]["delta"] == {"content": "c"}


def test_a_stream_resumed_after_its_last_token_keeps_its_place() -> None:
    assert b"id: r1:40\n" in writer(start=40).take(0, complete(tokens=40))


def test_the_end_of_a_stream_names_the_executor() -> None:
    events = writer(usage=True)
    ended = complete().model_copy(update={"fingerprint": "fp"})
    said = data(events.take(0, chunk("a")) + events.take(0, ended))
    assert [each["system_fingerprint"] for each in said] == [None, None, "fp", "fp"]


def test_answers_of_different_executors_have_no_fingerprint() -> None:
    completes = {
        choice: complete().model_copy(update={"fingerprint": made_by})
        for choice, made_by in enumerate(["fp", "other"])
    }
    whole = json.loads(Form("chat", "r1", "m", None).whole(["a", "b"], completes))
    assert whole["system_fingerprint"] is None


def test_several_answers_end_together() -> None:
    events = writer(n=2, usage=True)
    said = events.take(1, chunk("b")) + events.take(0, chunk("a")) + events.take(1, complete())
    assert not events.over
    said += events.take(0, complete(tokens=3))
    assert events.over
    chunks = data(said)
    assert [each["choices"][0]["index"] for each in chunks[:-1]] == [1, 1, 0, 0, 1, 0]
    assert chunks[-1]["usage"]["prompt_tokens"] == 7
    assert chunks[-1]["usage"]["completion_tokens"] == 5
    assert b"id: " not in said  # several answers cannot be resumed yet


@pytest.mark.parametrize(
    ("end", "code"),
    [
        (complete(FinishReason.CANCELLED), "cancelled"),
        (complete(FinishReason.ERROR), "internal"),
        (ErrorInfo(code=ErrorCode.CONFLICT, message="read elsewhere"), "conflict"),
    ],
)
def test_what_fails_ends_without_done(end: Complete | ErrorInfo, code: str) -> None:
    events = writer()
    events.take(0, chunk("a"))
    said = events.take(0, end)
    assert events.over
    assert schemas.ErrorEnvelope.model_validate(data(said)[0]).error.code == code
    assert b"[DONE]" not in said


def test_whole_answers() -> None:
    chat = Form("chat", new_request_id(), "m", None).whole(
        ["a", "b"], {0: complete(), 1: complete()}
    )
    answer = schemas.ChatCompletion.model_validate_json(chat)
    assert [each.message.content for each in answer.choices] == ["a", "b"]
    assert answer.usage.total_tokens == 11
    text = Form("generate", "r1", "m", "flex").whole(["a"], {0: complete()})
    assert schemas.TextCompletion.model_validate_json(text).service_tier == "flex"


def test_ids_of_events() -> None:
    assert read_event_id("a-b:12") == ("a-b", 12)
    for wrong in ("", "12", ":12", "a:", "a:-1", "a:x", "a:" + "9" * 9, "a:\u0663"):
        with pytest.raises(HttpError, match="Last-Event-ID"):
            read_event_id(wrong)


def test_created_is_in_the_id() -> None:
    assert abs(created_s(new_request_id()) - now_ms() / 1000) < 10
    assert created_s("r1") == 0


def test_refusals_say_when_to_call_again() -> None:
    info = ErrorInfo(code=ErrorCode.SATURATED, message="full", retry_after_s=1.2)
    headers = problem(info).response("r1").headers
    assert (headers["retry-after"], headers["retry-after-ms"]) == ("2", "1200")
    assert headers["x-should-retry"] == "true"
    late = problem(ErrorInfo(code=ErrorCode.DEADLINE_EXCEEDED, message="late"))
    assert (late.status, late.response("r1").headers["x-should-retry"]) == (504, "false")


def test_the_callers_own_name_of_a_field() -> None:
    info = ErrorInfo(code=ErrorCode.INVALID_REQUEST, message="max_tokens is 0", field="max_tokens")
    told = problem(info, {"max_tokens": "max_completion_tokens"})
    assert (told.param, told.message) == ("max_completion_tokens", "max_completion_tokens is 0")
