"""`headrace keys` with a running pipeline: a key works when `create` returns and ends with `revoke`."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import pytest

from contracts.client import Accepted, Chunk, Complete, FinishReason, Refused
from contracts.errors import ErrorCode
from stages.cli.rig import TENANT, Rig
from stages.runtime.client import AccessDenied, Answer, CallerError, GrpcCaller, NatsCaller
from tests.pipeline.conftest import WAIT_S

LONG: dict[str, Any] = {
    "prompt": "The mill", "max_tokens": 4000, "temperature": 0.0, "ignore_eos": True,
}  # fmt: skip


def keys(rig: Rig, *words: str) -> dict[str, Any]:
    """`headrace keys … --json` on the rig's file."""
    said = rig.headrace("keys", *words, "--topology", str(rig.topology), "--json")
    found: dict[str, Any] = json.loads(said)
    return found


async def end_of(stream: AsyncIterator[Answer], begun: asyncio.Event) -> Answer | CallerError:
    """The last thing a caller hears."""
    last: Answer | CallerError | None = None
    try:
        async with aclosing(stream) as answers:  # type: ignore[type-var]
            async for answer in answers:
                last = answer
                if isinstance(answer, Chunk):
                    begun.set()
    except CallerError as error:
        last = error
    assert last is not None
    return last


async def test_a_key_works_when_create_returns_and_its_streams_end_with_revoke(rig: Rig) -> None:
    made = await asyncio.to_thread(keys, rig, "create", TENANT, "--name", "brief")
    assert made["generation"] > 1
    async with (
        await GrpcCaller.connect(rig.grpc_address, made["key"]) as grpc,
        await NatsCaller.connect(rig.nats_url, TENANT, made["key"]) as nats,
    ):
        begun = [asyncio.Event(), asyncio.Event()]
        ends = [
            asyncio.create_task(end_of(caller.generate(LONG), started))
            for caller, started in zip((grpc, nats), begun, strict=True)
        ]
        await asyncio.wait_for(asyncio.gather(*(one.wait() for one in begun)), WAIT_S)
        gone = await asyncio.to_thread(keys, rig, "revoke", "brief")
        assert gone["id"] == made["id"]
        over_grpc, over_nats = await asyncio.wait_for(asyncio.gather(*ends), WAIT_S)
        assert isinstance(over_grpc, Complete | Refused), over_grpc
        assert over_grpc.error is None or over_grpc.error.code is ErrorCode.UNAUTHENTICATED
        assert not isinstance(over_nats, Accepted | Chunk)
        assert isinstance(over_nats, CallerError | Complete)
        if isinstance(over_nats, Complete):
            assert over_nats.finish_reason in (FinishReason.CANCELLED, FinishReason.ERROR)
        async with aclosing(grpc.generate(LONG)) as again:
            refused = await anext(again)
        assert isinstance(refused, Refused)
        assert refused.error.code is ErrorCode.UNAUTHENTICATED
    with pytest.raises(AccessDenied):
        await NatsCaller.connect(rig.nats_url, TENANT, made["key"])
    assert rig.status()["healthy"]


async def test_scopes_and_an_end_are_kept_to(rig: Rig) -> None:
    soon = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 8))
    made = await asyncio.to_thread(
        keys, rig, "create", TENANT, "--scope", "models", "--expires", soon
    )
    async with await GrpcCaller.connect(rig.grpc_address, made["key"]) as grpc:
        async with aclosing(grpc.generate(LONG)) as answers:
            refused = await anext(answers)
        assert isinstance(refused, Refused)
        assert refused.error.code is ErrorCode.PERMISSION_DENIED
        assert "'generate'" in refused.error.message
        async with asyncio.timeout(WAIT_S):
            while not isinstance(answer := await grpc.models(), Refused):
                await asyncio.sleep(0.2)
        assert "expired at" in answer.error.message
    await asyncio.to_thread(keys, rig, "revoke", made["id"])
