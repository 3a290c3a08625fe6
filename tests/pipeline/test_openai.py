"""The unmodified `openai` client, sync and async, on the whole pipeline."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import openai
import pytest

from stages.cli.rig import KEY, Rig, default_topology, private_pipeline
from tests.pipeline.conftest import eventually, receipt, rows

ASK: Any = [{"role": "user", "content": "Name a colour."}]
MODEL = "smollm"


@pytest.fixture
def client(rig: Rig) -> Iterator[openai.OpenAI]:
    """The sync client."""
    with openai.OpenAI(base_url=rig.http_url, api_key=KEY) as connected:
        yield connected


@pytest.fixture
async def web(rig: Rig) -> AsyncIterator[openai.AsyncOpenAI]:
    """The async client."""
    async with openai.AsyncOpenAI(base_url=rig.http_url, api_key=KEY) as connected:
        yield connected


def test_a_chat_is_the_same_whole_and_streamed(client: openai.OpenAI, rig: Rig) -> None:
    options: Any = {"model": MODEL, "messages": ASK, "seed": 4, "max_completion_tokens": 8}
    whole = client.chat.completions.create(**options)
    assert whole.choices[0].finish_reason in ("stop", "length")
    assert whole.usage is not None
    stream = client.chat.completions.create(
        **options, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert [chunk.usage for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    row = receipt(rig, chunks[-1].id)
    assert row["door"] == "http"
    assert row["completion_tokens"] == whole.usage.completion_tokens


async def test_three_answers_bill_their_prompt_once(web: openai.AsyncOpenAI, rig: Rig) -> None:
    options: Any = {"model": MODEL, "messages": ASK, "seed": 4, "max_tokens": 6, "n": 3}
    whole = await web.chat.completions.create(**options)
    again = await web.chat.completions.create(**options)
    texts = [choice.message.content for choice in whole.choices]
    assert texts == [choice.message.content for choice in again.choices]
    assert len(set(texts)) > 1  # each has a seed of its own
    assert whole.usage is not None
    query = (
        "SELECT sum(prompt_tokens) AS prompt, sum(completion_tokens) AS completion FROM requests "
        f"WHERE request_id = '{whole.id}' OR sibling_of = '{whole.id}'"
    )
    (billed,) = rows(rig, query)
    assert int(billed["prompt"]) == whole.usage.prompt_tokens
    assert int(billed["completion"]) == whole.usage.completion_tokens
    parts: dict[int, str] = {}
    async for chunk in await web.chat.completions.create(**options, stream=True):
        for choice in chunk.choices:
            parts[choice.index] = parts.get(choice.index, "") + (choice.delta.content or "")
    assert [parts[index] for index in range(3)] == texts


def test_stop_and_text_completions(client: openai.OpenAI) -> None:
    options: Any = {"model": MODEL, "prompt": "1 2 3 4 5", "temperature": 0, "max_tokens": 12}
    whole = client.completions.create(**options).choices[0].text
    stop = whole[3:5]
    cut = client.completions.create(**options, stop=stop).choices[0]
    assert cut.text == whole[: whole.find(stop)]
    assert cut.finish_reason == "stop"


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).id == MODEL


def test_typed_errors(client: openai.OpenAI) -> None:
    create = client.chat.completions.create
    with pytest.raises(openai.AuthenticationError):
        client.with_options(api_key="wrong").chat.completions.create(model=MODEL, messages=ASK)
    with pytest.raises(openai.NotFoundError) as unknown:
        create(model="gpt-4o", messages=ASK)
    assert unknown.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as wrong:
        create(model=MODEL, messages=ASK, temperature=9)
    assert wrong.value.param == "temperature"
    with pytest.raises(openai.BadRequestError) as later:
        create(model=MODEL, messages=ASK, tools=[{"type": "function", "function": {"name": "f"}}])
    assert (later.value.code, later.value.param) == ("unsupported_parameter", "tools")
    with pytest.raises(openai.BadRequestError) as long:
        create(model=MODEL, messages=[{"role": "user", "content": "word " * 9000}])
    assert long.value.code == "context_length_exceeded"


async def test_a_client_that_is_in_a_hurry_times_out_and_is_noticed(
    web: openai.AsyncOpenAI, rig: Rig
) -> None:
    hurried = web.with_options(timeout=0.5, max_retries=0)
    with pytest.raises(openai.APITimeoutError):
        await hurried.completions.create(
            model=MODEL,
            prompt="Once",
            max_tokens=2000,
            extra_body={"ignore_eos": True, "metadata": {"test": "hurried"}},
        )
    query = (
        "SELECT finish_reason, completion_tokens FROM requests WHERE metadata['test'] = 'hurried'"
    )
    await eventually(lambda: bool(rows(rig, query)), "a receipt")
    (row,) = rows(rig, query)
    assert (row["finish_reason"], row["completion_tokens"]) == ("cancelled", 0)


async def test_a_stream_is_resumed_where_it_was_cut(web: openai.AsyncOpenAI) -> None:
    options: Any = {
        "model": MODEL,
        "prompt": "Once upon a time",
        "seed": 1,
        "max_tokens": 24,
        "extra_body": {"ignore_eos": True, "resume_window_ms": 30_000},
    }
    whole = (await web.completions.create(**options)).choices[0].text
    async with web.completions.with_streaming_response.create(**options, stream=True) as response:
        lines = response.iter_lines()
        seen, last_id = "", ""
        async for line in lines:
            if line.startswith("id: "):
                last_id = line[4:]
            if line.startswith("data: ") and last_id:
                seen += _text(line)
                if len(seen) > 4:
                    break
    rest = await web.completions.create(
        **options, stream=True, extra_headers={"Last-Event-ID": last_id}
    )
    seen += "".join([chunk.choices[0].text async for chunk in rest])
    assert seen == whole


def _text(line: str) -> str:
    text: str = json.loads(line[6:])["choices"][0]["text"]
    return text


@pytest.mark.slow
async def test_a_full_pool_is_a_rate_limit_and_its_retry_is_honoured() -> None:
    topology = default_topology()
    topology["pools"]["small"] |= {"slots": 1, "queue": {"requests": 1}}
    long: Any = {"model": MODEL, "prompt": "Once", "extra_body": {"ignore_eos": True}}
    with private_pipeline(topology) as rig:
        async with openai.AsyncOpenAI(base_url=rig.http_url, api_key=KEY, max_retries=0) as web:
            held = [
                asyncio.ensure_future(web.completions.create(**long, max_tokens=4000, stream=True))
            ]
            running = await held[0]  # its first token has come: it has the slot
            queued = asyncio.ensure_future(web.completions.create(**long, max_tokens=4))
            await eventually(lambda: rig.status()["conservation"]["queued"] == 1, "a full queue")
            with pytest.raises(openai.RateLimitError) as full:
                await web.completions.create(**long, max_tokens=4)
            assert full.value.code == "saturated"
            assert int(full.value.response.headers["retry-after"]) >= 1
            patient = web.with_options(max_retries=20)
            asking = asyncio.ensure_future(patient.completions.create(**long, max_tokens=4))
            await running.close()  # makes room
            assert (await queued).usage.completion_tokens == 4  # type: ignore[union-attr]
            assert (await asking).usage.completion_tokens == 4  # type: ignore[union-attr]
