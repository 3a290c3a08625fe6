"""An OpenAI request in our own terms; what cannot be said is refused by name."""

import json
from typing import Any

import pytest
from openai.types.chat import ChatCompletionMessage

from contracts.client import ChatRequest, GenerateRequest
from contracts.internal import Verb
from stages.egress.http.errors import HttpError
from stages.egress.http.options import NEUTRAL
from stages.egress.http.translate import Asked, translate

HELLO: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}]}
ONCE: dict[str, Any] = {"prompt": "Once"}


def asked(verb: Verb = "chat", **fields: Any) -> Asked:
    return translate(verb, json.dumps((HELLO if verb == "chat" else ONCE) | fields).encode())


def refusal(verb: Verb = "chat", **fields: Any) -> HttpError:
    with pytest.raises(HttpError) as refused:
        asked(verb, **fields)
    return refused.value


def test_all_options_that_travel() -> None:
    call = asked(
        model="smollm",
        temperature=0.5,
        top_p=0.9,
        seed=7,
        max_completion_tokens=5,
        stop="END",
        stream=True,
        stream_options={"include_usage": True},
        service_tier="flex",
        metadata={"team": "a"},
        user="u1",
        top_k=4,
        ignore_eos=True,
        timeout_ms=9000,
        resume_window_ms=1000,
        n=None,
    )
    request = ChatRequest.model_validate_json(call.body(0, "key"))
    assert request == ChatRequest.model_validate(
        {
            "messages": [{"role": "user", "content": "Hi"}],
            "model": "smollm",
            "temperature": 0.5,
            "top_p": 0.9,
            "seed": 7,
            "max_tokens": 5,
            "stop": ["END"],
            "priority": "low",
            "metadata": {"team": "a", "user": "u1"},
            "top_k": 4,
            "ignore_eos": True,
            "timeout_ms": 9000,
            "resume_window_ms": 1000,
            "idempotency_key": "key",
        }
    )
    assert (call.n, call.stream, call.include_usage, call.tier) == (1, True, True, "flex")


def test_no_prompt_in_a_list() -> None:
    refused = refusal("generate", prompt=[])
    assert (refused.code, refused.param) == ("invalid_request", "prompt")


def test_each_answer_has_a_seed_of_its_own() -> None:
    call = asked(n=3, seed=2**63 - 1)
    assert [json.loads(call.body(choice, None))["seed"] for choice in range(3)] == [2**63 - 1, 0, 1]
    assert "seed" not in json.loads(asked(n=3).body(2, None))


def test_text_parts_and_developer_messages() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    call = asked(
        messages=[{"role": "developer", "content": "be brief"}, {"role": "user", "content": parts}]
    )
    messages = ChatRequest.model_validate_json(call.body(0, None)).messages
    assert [(each.role, each.content) for each in messages] == [
        ("system", "be brief"),
        ("user", "ab"),
    ]


def test_a_prompt_in_a_list() -> None:
    call = asked("generate", prompt=["Once"])
    assert GenerateRequest.model_validate_json(call.body(0, None)).prompt == "Once"


@pytest.mark.parametrize(
    ("verb", "name", "value"),
    [
        ("chat", "tools", [{"type": "function"}]),
        ("chat", "tool_choice", "auto"),
        ("chat", "response_format", {"type": "json_object"}),
        ("chat", "logprobs", True),
        ("chat", "top_logprobs", 3),
        ("chat", "logit_bias", {"5": 1}),
        ("chat", "frequency_penalty", 0.1),
        ("chat", "presence_penalty", False),
        ("chat", "modalities", ["text", "audio"]),
        ("chat", "store", True),
        ("generate", "suffix", "end"),
        ("generate", "echo", True),
        ("generate", "best_of", 2),
        ("generate", "logprobs", 0),
        ("generate", "prompt", [1, 2]),
        ("generate", "prompt", ["a", "b"]),
    ],
)
def test_what_is_not_there_yet_is_refused_by_name(verb: Verb, name: str, value: Any) -> None:
    refused = refusal(verb, **{name: value})
    assert (refused.status, refused.code, refused.param) == (400, "unsupported_parameter", name)
    assert name in refused.message


@pytest.mark.parametrize("verb", ["chat", "generate"])
def test_values_that_ask_for_nothing_are_taken(verb: Verb) -> None:
    for name, values in NEUTRAL[verb].items():
        for value in values:
            assert name not in asked(verb, **{name: value}).fields


def test_an_answer_can_be_sent_back_as_the_client_dumps_it() -> None:
    said = ChatCompletionMessage(role="assistant", content="Hello").model_dump()
    said |= {"tool_calls": [], "annotations": []}
    assert asked(messages=[said]).fields["messages"] == [{"role": "assistant", "content": "Hello"}]


@pytest.mark.parametrize(
    ("verb", "name", "advice"),
    [
        ("chat", "prompt", "/v1/completions"),
        ("generate", "messages", "/v1/chat/completions"),
        ("generate", "max_completion_tokens", "max_tokens"),
        ("chat", "idempotency_key", "header"),
        ("chat", "wat", "remove"),
    ],
)
def test_unknown_fields_come_with_advice(verb: Verb, name: str, advice: str) -> None:
    refused = refusal(verb, **{name: "x"})
    assert (refused.code, refused.param) == ("unknown_parameter", name)
    assert advice in refused.message


def test_a_single_stop_text_keeps_its_name() -> None:
    assert (asked(stop="").names or {})["stop.0"] == "stop"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_tokens": 9, "max_completion_tokens": 5}, "max_tokens"),
        ({"wat": 1}, "wat"),
        ({"n": 17}, "n"),
        ({"n": True}, "n"),
        ({"n": 1.0}, "n"),
        ({"stream": 1}, "stream"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": True, "stream_options": {"x": 1}}, "stream_options.x"),
        ({"stream": True, "stream_options": []}, "stream_options"),
        ({"service_tier": "scale"}, "service_tier"),
        ({"timeout_ms": 5}, "timeout_ms"),
        ({"messages": None}, "messages"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages.0.role"),
        ({"messages": [{"role": "user", "content": "x", "name": "y"}]}, "messages.0.name"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            "messages.0.content.0.type",
        ),
        ({"messages": [{"role": "user", "content": ["x"]}]}, "messages.0.content.0"),
    ],
)
def test_mistakes_name_the_parameter(fields: dict[str, Any], param: str) -> None:
    refused = refusal(**fields)
    assert (refused.status, refused.param) == (400, param)


@pytest.mark.parametrize(
    "raw", [b"", b"{", b"[]", b"null", b'{"seed": NaN}', b'"\\ud800"', b"\xff"]
)
def test_what_is_no_json_object(raw: bytes) -> None:
    with pytest.raises(HttpError) as refused:
        translate("chat", raw)
    assert refused.value.status == 400
