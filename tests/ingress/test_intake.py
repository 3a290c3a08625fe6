"""One call's way to work, and every refusal on it."""

from collections.abc import Sequence
from typing import Any

import pytest

from contracts.client import ChatRequest, Message
from contracts.errors import ErrorCode, ErrorInfo, HeadraceError
from contracts.internal import Work
from contracts.topology import Topology
from stages.ingress.intake import Call, forwarded, traceparent
from stages.ingress.prompt import INLINE_CHARS, PromptMaker, Turn, answer_limit, probe
from tests.ingress.support import NOW, Words, call, intake
from tests.support.stages import OTHER_KEY, topology


async def take(made: Call, plan: Topology | None = None) -> Work:
    entry = intake(plan)
    caller, verb = entry.enter(made)
    work, _ = await entry.work(made, caller, verb)
    return work


async def refused(made: Call, plan: Topology | None = None) -> ErrorInfo:
    with pytest.raises(HeadraceError) as error:
        await take(made, plan)
    return error.value.info


async def test_defaults_are_filled_in() -> None:
    work = await take(call({"prompt": "one two three"}))
    assert (work.tenant, work.route, work.model, work.model_named) == (
        "acme",
        "default",
        "m",
        False,
    )
    assert (work.prompt_ids, work.max_tokens) == ([0, 1, 2], 64)
    assert work.sampling.seed == 4242
    assert work.deadline_ms == NOW + 120_000
    assert (work.generation, work.door, work.egress) == (7, "nats", "")
    sent = forwarded(work, "e1", NOW + 2)
    assert (sent.egress, sent.stamps.received, sent.stamps.ingress) == ("e1", NOW, NOW + 2)


async def test_what_the_caller_says_is_kept() -> None:
    body = {
        "messages": [{"role": "user", "content": "a b"}],
        "model": "big",
        "max_tokens": 5,
        "seed": 9,
        "timeout_ms": 1000,
        "stop": ["x"],
        "metadata": {"k": "v"},
        "priority": "low",
        "token_ids": True,
        "ignore_eos": True,
    }
    work = await take(call(body, "chat", tenant=None))
    assert (work.model, work.model_named, len(work.prompt_ids)) == ("big", True, 4)
    assert (work.max_tokens, work.sampling.seed, work.deadline_ms) == (5, 9, NOW + 1000)
    assert (work.stop, work.metadata, work.token_ids, work.ignore_eos) == (
        ["x"], {"k": "v"}, True, True,
    )  # fmt: skip


async def test_the_first_matching_route_decides() -> None:
    plan = topology(
        routes=[
            {"name": "others", "pool": "q", "match": {"tenant": "other"}},
            {"name": "talk", "pool": "p", "match": {"verb": "chat"}, "max_tokens": 3},
            {"pool": "q", "match": {"priority": "high", "model": "big"}},
        ]
    )
    chat = {"messages": [{"role": "user", "content": "x"}]}
    assert (
        await take(call({"prompt": "x"}, api_key=OTHER_KEY, tenant="other"), plan)
    ).model == "big"
    talk = await take(call(chat, "chat"), plan)
    assert (talk.route, talk.model, talk.max_tokens) == ("talk", "m", 3)
    named = await take(call({"prompt": "x", "model": "big", "priority": "high"}), plan)
    assert named.route == "route-2"
    info = await refused(call({"prompt": "x"}), plan)
    assert info.code is ErrorCode.NOT_FOUND
    assert "no route" in info.message


async def test_an_unknown_model_lists_the_known_ones() -> None:
    info = await refused(call({"prompt": "x", "model": "gpt"}))
    assert (info.code, info.field) == (ErrorCode.NOT_FOUND, "model")
    assert info.message == "unknown model 'gpt'; this tenant may name: big, m"


@pytest.mark.parametrize("verb", ["embed", "", "Generate"])
async def test_an_unknown_call_lists_the_known_ones(verb: str) -> None:
    info = await refused(call({}, verb))
    assert info.code is ErrorCode.NOT_FOUND
    assert "generate, chat, cancel, resume, models" in info.message


@pytest.mark.parametrize(
    ("prompt", "options", "says"),
    [
        (100, {}, "the prompt has 100 tokens; model 'm' has a context of 100"),
        (99, {"max_tokens": 2}, "99 tokens and max_tokens is 2, together 101; model 'm' has a "
         "context of 100: ask for at most 1"),
        (5000, {}, "the prompt has at least"),
        (1_000_000, {}, "the prompt has at least"),
    ],
)  # fmt: skip
async def test_prompt_and_answer_must_fit_the_context(
    prompt: int, options: dict[str, Any], says: str
) -> None:
    info = await refused(call({"prompt": "w " * prompt} | options))
    assert info.code is ErrorCode.CONTEXT_LENGTH_EXCEEDED
    assert says in info.message


async def test_a_long_conversation_is_refused_before_it_is_tokenized_whole() -> None:
    messages = [{"role": "user", "content": "w " * 300}] * 20
    info = await refused(call({"messages": messages}, "chat"))
    assert info.code is ErrorCode.CONTEXT_LENGTH_EXCEEDED


def test_the_default_answer_is_cut_to_what_is_left() -> None:
    assert answer_limit(99, None, 64, "m", 100) == 1
    assert answer_limit(10, None, 64, "m", 100) == 64
    assert answer_limit(50, 50, 64, "m", 100) == 50


def test_a_probe_never_condemns_what_may_fit() -> None:
    assert probe("w " * 100, 100, Words().prompt_ids) is None
    assert probe("x" * 10_000, 100, Words().prompt_ids) is None  # one long word
    found = probe("w " * 10_000, 100, Words().prompt_ids)
    assert found is not None
    assert 100 < found <= 10_000


async def test_long_prompts_in_a_thread_give_the_same_ids() -> None:
    work = await take(call({"prompt": "x" * (INLINE_CHARS + 1)}))
    assert work.prompt_ids == [0]


async def test_thousands_of_empty_messages_leave_the_event_loop_alone() -> None:
    class Quick(Words):
        def chat_ids(self, turns: Sequence[Turn]) -> list[int]:
            raise AssertionError(f"{len(turns)} turns on the event loop")

    maker = PromptMaker("m", 10_000, Quick(), Words())
    turns = [Message(role="user", content="")] * 4096
    assert len(await maker.ids(ChatRequest(messages=turns))) == 8192


async def test_what_the_template_refuses_is_explained() -> None:
    body = {"messages": [{"role": "assistant", "content": "x"}]}
    info = await refused(call(body, "chat"))
    assert (info.code, info.field) == (ErrorCode.INVALID_REQUEST, "messages")
    assert "starts with the assistant" in info.message


async def test_a_prompt_without_tokens_is_refused() -> None:
    assert (await refused(call({"prompt": "  "}))).field == "prompt"


@pytest.mark.parametrize(
    ("body", "received", "field"),
    [
        ({"deadline_unix_ms": int(NOW)}, NOW, "deadline_unix_ms"),
        ({"deadline_unix_ms": 0}, NOW, "deadline_unix_ms"),
        ({"timeout_ms": 50}, NOW - 60, "timeout_ms"),
    ],
)
async def test_a_passed_deadline(body: dict[str, int], received: float, field: str) -> None:
    info = await refused(call({"prompt": "x"} | body, received_ms=received))
    assert (info.code, info.field) == (ErrorCode.DEADLINE_EXCEEDED, field)


async def test_the_earlier_deadline_counts() -> None:
    body = {"prompt": "x", "timeout_ms": 5000, "deadline_unix_ms": int(NOW) + 900}
    assert (await take(call(body))).deadline_ms == NOW + 900


def test_models_and_trace_parents() -> None:
    cards = intake().models().models
    assert [(card.id, card.context, card.pools) for card in cards] == [
        ("big", 100, ["q"]),
        ("m", 100, ["p"]),
    ]
    good = f"00-{'a' * 32}-{'b' * 16}-01"
    assert traceparent(good) == good
    assert traceparent("x") is None
    assert traceparent(None) is None
