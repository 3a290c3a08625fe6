"""Calls with an idempotency key on the whole pipeline: run once, billed once, whatever the door."""

import asyncio
from typing import Any

from contracts.client import Chunk, Complete, GenerateRequest, Refused
from contracts.errors import ErrorCode
from stages.cli.bench.calls import Caller
from stages.cli.bench.pipeline.site import Site
from tests.pipeline.conftest import receipt, rows


async def call(caller: Caller, **changes: Any) -> tuple[str, Complete | Refused]:
    """The text and the last answer."""
    fields = {"prompt": "Once upon a time", "max_tokens": 6, "seed": 7} | changes
    text = ""
    async for answer in caller.generate(GenerateRequest.model_validate(fields)):
        if isinstance(answer, Chunk):
            text += answer.text
        last = answer
    assert isinstance(last, Complete | Refused)
    return text, last


async def test_a_repeat_is_the_same_request_through_both_doors(site: Site) -> None:
    key = {"idempotency_key": "once"}
    # Those that come while it runs take the stream over from each other: the last one has it all.
    racing = await asyncio.gather(*(call(door, **key) for door in (*site.doors, *site.doors)))
    ended = [last for _, last in racing if isinstance(last, Complete)]
    assert len({last.request_id for last in ended}) == 1
    for door in site.doors:
        text, again = await call(door, **key)
        assert isinstance(again, Complete)
        assert (again.request_id, again.usage.completion_tokens) == (ended[0].request_id, 6)
        assert text == max((text for text, _ in racing), key=len)
    row = await asyncio.to_thread(receipt, site.rig, ended[0].request_id)
    assert row["completion_tokens"] == 6
    query = f"SELECT count(*) AS n FROM attempts WHERE request_id = '{ended[0].request_id}'"
    [count] = await asyncio.to_thread(rows, site.rig, query)
    assert count["n"] == 1


async def test_another_body_conflicts(site: Site) -> None:
    _, first = await call(site.grpc, idempotency_key="twice", max_tokens=2)
    for door in site.doors:
        _, refused = await call(door, idempotency_key="twice", max_tokens=3)
        assert isinstance(refused, Refused)
        assert refused.error.code is ErrorCode.CONFLICT
        assert first.request_id in refused.error.message
