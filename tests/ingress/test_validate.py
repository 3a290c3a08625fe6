"""Bad input: one clear error that names field, value, what was expected, what to do."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from contracts.client import (
    MAX_REQUEST_BYTES,
    CancelRequest,
    ChatRequest,
    GenerateRequest,
    Priority,
)
from contracts.errors import ErrorCode, ErrorInfo, HeadraceError
from stages.ingress.validate import parse, shown

CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]}


def refused(body: Any, kind: type[BaseModel] = GenerateRequest) -> ErrorInfo:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    with pytest.raises(HeadraceError) as error:
        parse(raw, kind)
    assert error.value.info.code is ErrorCode.INVALID_REQUEST
    assert len(error.value.info.message) < 600
    return error.value.info


@pytest.mark.parametrize(
    ("change", "field", "says"),
    [
        ({"temperature": -1}, "temperature", "temperature is -1: it should be greater than or"),
        ({"temperature": "hot"}, "temperature", 'is "hot": it should be a valid number'),
        ({"max_tokens": 0}, "max_tokens", "max_tokens is 0: it should be greater than or equal"),
        ({"max_tokens": 1.5}, "max_tokens", "is 1.5: it should be a valid integer"),
        ({"max_tokens": True}, "max_tokens", "is true: it should be a valid integer"),
        ({"top_p": 0}, "top_p", "greater than 0"),
        ({"seed": -5}, "seed", "greater than or equal to 0"),
        ({"colour": 1}, "colour", "colour is an unknown field; remove it or use one of: "),
        ({"prompt": 5}, "prompt", "prompt is 5: it should be a valid string"),
        ({"prompt": ""}, "prompt", 'prompt is "": it should have at least 1 character (the text'),
        ({"prompt": "a\0b"}, "prompt", "must not contain NUL characters; remove them"),
        ({"stop": ["x"] * 17}, "stop", "it should have at most 16 items, not 17"),
        ({"stop": ["x", ""]}, "stop.1", "at least 1 character"),
        ({"priority": "urgent"}, "priority", "'high', 'normal' or 'low'"),
        ({"metadata": {"a": 1}}, "metadata.a", "valid string"),
        ({"metadata": {"a": "x" * 20_000}}, "metadata", "20001 bytes; at most 16384"),
        ({"model": ""}, "model", "at least 1 character"),
    ],
)
def test_each_mistake_is_named(change: dict[str, Any], field: str, says: str) -> None:
    info = refused({"prompt": "hi"} | change)
    assert info.field == field
    assert says in info.message
    assert info.message.count("should") <= 1


@pytest.mark.parametrize(
    ("messages", "field", "says"),
    [
        ([], "messages", "messages is []: it should have at least 1 item, not 0"),
        ("hi", "messages", "valid array"),
        ([{"role": "robot", "content": "x"}], "messages.0.role", "'system', 'user' or 'assistant'"),
        ([{"role": "user"}], "messages.0.content", "messages.0.content is missing"),
        ([{"role": "user", "content": "x", "name": "y"}], "messages.0.name",
         "unknown field; remove it or use one of: role, content"),
        ([{"role": "user", "content": "\0"}], "messages.0.content", "NUL"),
    ],
)  # fmt: skip
def test_each_mistake_in_messages_is_named(messages: Any, field: str, says: str) -> None:
    info = refused({"messages": messages}, ChatRequest)
    assert info.field == field
    assert says in info.message
    assert info.message.count("should") <= 1


def test_what_is_not_json_is_said_to_be_so() -> None:
    for body in (b"", b"hello", b'{"prompt": "x"', b"{'prompt': 1}", b'{"prompt":"\\ud800"}'):
        info = refused(body)
        assert info.field is None
        assert info.message.startswith("the body is not JSON: ")
    assert refused([1]).message == "the body is [1]; it should be an object"
    assert refused(b"null").field is None


def test_invalid_utf8_is_located() -> None:
    info = refused(b'{"prompt": "\xff"}')
    assert "byte 0xff at position 12" in info.message


def test_deep_nesting_is_refused_quickly() -> None:
    assert "not JSON" in refused(b'{"prompt":' + b"[" * 100_000).message


def test_more_bytes_than_the_bus_carries_are_refused() -> None:
    info = refused(b'{"prompt":"' + b"x" * MAX_REQUEST_BYTES + b'"}')
    assert f"at most {MAX_REQUEST_BYTES}" in info.message


def test_further_mistakes_are_counted() -> None:
    info = refused({"prompt": "x", "temperature": -1, "top_p": 5, "max_tokens": 0})
    assert info.message.endswith("(2 more like this)")


def test_a_missing_prompt_and_a_missing_id() -> None:
    assert refused({}).message == "prompt is missing (the text to continue); add it"
    assert refused({}, CancelRequest).field == "request_id"


def test_valid_requests_pass() -> None:
    request = parse(b'{"prompt":"x","temperature":0,"priority":"high"}', GenerateRequest)
    assert request.priority is Priority.HIGH
    assert parse(json.dumps(CHAT).encode(), ChatRequest).messages[0].content == "hi"


@given(st.binary(max_size=200))
def test_no_bytes_raise_anything_else(body: bytes) -> None:
    codes = []
    for kind in (GenerateRequest, ChatRequest, CancelRequest):
        try:
            parse(body, kind)
        except HeadraceError as error:
            codes.append(error.info.code)
    assert set(codes) <= {ErrorCode.INVALID_REQUEST}


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)
fields = st.sampled_from([*GenerateRequest.model_fields, "messages", "x"])


@given(st.dictionaries(fields, json_values, max_size=4))
def test_no_json_raises_anything_else(body: dict[str, Any]) -> None:
    test_no_bytes_raise_anything_else.hypothesis.inner_test(  # type: ignore[attr-defined]
        json.dumps(body).encode()
    )


def test_values_are_shortened() -> None:
    assert shown("x" * 1000) == '"' + "x" * 59 + "…"
    assert len(shown(list(range(1000)))) < 70
