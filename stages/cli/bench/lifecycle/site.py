"""Where the suite runs: a private pipeline with a second one of what may be lost, and three doors."""

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Final

from contracts.client import GenerateRequest
from contracts.status import StatusCall, StatusReport
from contracts.subjects import STATUS
from stages.cli.bench.calls import Caller
from stages.cli.bench.lifecycle.call import Call
from stages.cli.bench.lifecycle.http_call import HttpCaller
from stages.cli.bench.prompts import Prompts
from stages.cli.rig import KEY, TENANT, Rig, default_topology
from stages.runtime.bus import Bus
from stages.runtime.client import GrpcCaller, NatsCaller

PROMPTS: Final = 8
PROMPT_TOKENS: Final = 32
CALL_MS: Final = 120_000  # each call's own deadline
LIMIT_S: Final = 135.0  # a client waits that long for its terminal
ASK_S: Final = 1.0


def topology() -> dict[str, Any]:
    """Two executors of one thread, two egresses, an owner of the queue and its standby."""
    document = default_topology()
    document["pools"]["small"] |= {
        "executors": {"min": 2, "max": 2},
        "threads": 1,
        "kv_tokens": 16384,
    }
    document["stages"] = {"egress": {"replicas": 2}, "queueing": {"replicas": 2}}
    return document


@dataclass(frozen=True)
class Site:
    """What the parts of the suite share."""

    rig: Rig
    grpc: Caller
    nats: Caller
    http: HttpCaller
    bus: Bus
    prompts: Prompts
    texts: tuple[str, ...]

    def request(self, prompt: int, tokens: int) -> GenerateRequest:
        """A greedy call of exactly `tokens` tokens."""
        return GenerateRequest(
            prompt=self.texts[prompt],
            max_tokens=tokens,
            temperature=0.0,
            ignore_eos=True,
            token_ids=True,
            timeout_ms=CALL_MS,
            resume_window_ms=30_000,
        )

    async def run(self, call: Call) -> Call:
        """Make a call at its door and follow it to its end; never raises for what the service did."""
        request = self.request(call.prompt, call.tokens)
        if call.door == "http":
            body = request.model_dump(exclude={"token_ids"}, exclude_unset=True)
            await self.http.run(call, {"model": "smollm", **body}, LIMIT_S)
            return call
        caller = self.grpc if call.door == "grpc" else self.nats
        try:
            async with contextlib.aclosing(caller.generate(request, LIMIT_S)) as answers:
                async for answer in answers:
                    call.take(answer)
        except Exception as error:  # noqa: BLE001 - noted, and counted as lost
            call.fail(repr(error))
        return call

    async def status(self) -> StatusReport | None:
        """What control says; None while it does not answer."""
        with contextlib.suppress(Exception):
            return await self.bus.request(STATUS, StatusCall(), StatusReport, ASK_S)
        return None


@contextlib.asynccontextmanager
async def open_site(rig: Rig, seed: int) -> AsyncIterator[Site]:
    """Connect to a running pipeline."""
    prompts = Prompts(seed)
    texts = tuple(prompts.text(PROMPT_TOKENS) for _ in range(PROMPTS))
    http = HttpCaller(rig.http_url, KEY)
    bus = await Bus.connect(rig.internal_bus(), "bench")
    try:
        async with (
            await GrpcCaller.connect(rig.grpc_address, KEY) as grpc,
            await NatsCaller.connect(rig.nats_url, TENANT, KEY) as nats,
        ):
            yield Site(rig, grpc, nats, http, bus, prompts, texts)
    finally:
        await http.close()
        await bus.close()
