"""The figures of the HTTP suite: interleaved pairs with gRPC, and many streams at once."""

import asyncio
import sys
from collections.abc import Callable
from statistics import median
from typing import Final

import httpx2
import uvloop

from contracts.client import GenerateRequest
from stages.cli.bench.calls import run_call
from stages.cli.bench.figures import FigureSpec, Goal, Results, circumstances
from stages.cli.bench.http.events import connect, stream
from stages.cli.bench.pipeline.site import Site, open_site
from stages.cli.rig import MODEL, Rig, private_pipeline

SEED: Final = 30
PAIRS: Final = 40
WARM_UP: Final = 4
SETTLE_S: Final = 0.4  # what the last call left behind is done by then
PROMPT: Final = 32
STREAMS: Final = 200
STREAM_PROMPT: Final = 8
STREAM_TOKENS: Final = 8

SPECS: Final = (
    FigureSpec(
        "http.ttft_over_grpc_ms_p50", "ms",
        f"{PAIRS} interleaved pairs, one {PROMPT}-token prompt at a time on an idle machine, HTTP "
        "and gRPC first in turn: TTFT over HTTP minus TTFT over gRPC, both by the client's clock; "
        "median of the differences", Goal("<=", 3),
    ),
    FigureSpec("http.ttft_ms_p50", "ms", "the HTTP side of those pairs"),
    FigureSpec("http.grpc_ttft_ms_p50", "ms", "the gRPC side of those pairs"),
    FigureSpec(
        "http.concurrent_streams", "",
        f"{STREAMS} event streams opened at once on one door ({STREAM_PROMPT} tokens in, "
        f"{STREAM_TOKENS} out): those that delivered text and ended in order",
        Goal(">=", STREAMS),
    ),
)  # fmt: skip


def run(say: Callable[[str], None]) -> Results:
    """Start a private pipeline, measure, stop it. About two minutes."""
    say("starting a private pipeline")
    with private_pipeline() as rig:
        values = uvloop.run(_measure(rig, say))
        say("stopping")
    return Results(SPECS, values, circumstances(MODEL))


async def _measure(rig: Rig, say: Callable[[str], None]) -> dict[str, float]:
    async with open_site(rig, SEED) as site, connect(rig) as web:
        say("TTFT over HTTP and over gRPC (about 60 s)")
        values = await ttft(site, web)
        say(f"{STREAMS} streams at once (about 30 s)")
        values["http.concurrent_streams"] = await concurrent(site, web)
        return values


async def ttft(site: Site, web: httpx2.AsyncClient) -> dict[str, float]:
    """One call at a time; each pair begins with the other door."""
    over_http, over_grpc = [], []
    for number in range(PAIRS + WARM_UP):
        order = (_http, _grpc) if number % 2 else (_grpc, _http)
        times = {}
        for door in order:
            await asyncio.sleep(SETTLE_S)
            times[door] = await door(site, web)
        if number >= WARM_UP:
            over_http.append(times[_http])
            over_grpc.append(times[_grpc])
    differences = [a - b for a, b in zip(over_http, over_grpc, strict=True)]
    return {
        "http.ttft_over_grpc_ms_p50": median(differences),
        "http.ttft_ms_p50": median(over_http),
        "http.grpc_ttft_ms_p50": median(over_grpc),
    }


async def _http(site: Site, web: httpx2.AsyncClient) -> float:
    return (await stream(web, site.prompts.text(PROMPT), 2)).ttft_ms


async def _grpc(site: Site, _: httpx2.AsyncClient) -> float:
    request = GenerateRequest(
        prompt=site.prompts.text(PROMPT), max_tokens=2, temperature=0.0, ignore_eos=True
    )
    return (await run_call(site.grpc, request)).ttft_ms


async def concurrent(site: Site, web: httpx2.AsyncClient) -> float:
    """How many of the streams were whole."""
    texts = [site.prompts.text(STREAM_PROMPT) for _ in range(STREAMS)]
    streams = await asyncio.gather(*(stream(web, text, STREAM_TOKENS) for text in texts))
    for failed in {each.error for each in streams if not each.whole}:
        print(f"a stream failed: {failed}", file=sys.stderr)
    return float(sum(each.whole for each in streams))
