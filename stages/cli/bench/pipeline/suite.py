"""The figures of the pipeline suite and their order of measurement."""

import time
from collections.abc import Callable
from typing import Final

import uvloop

from stages.cli.bench.figures import FigureSpec, Goal, Results, circumstances
from stages.cli.bench.pipeline.cancel import cancel
from stages.cli.bench.pipeline.overhead import throughput, ttft
from stages.cli.bench.pipeline.site import beside, open_site
from stages.cli.bench.pipeline.usage import usage
from stages.cli.rig import MODEL, Rig, stopped_pipeline

SEED: Final = 20
SLOTS: Final = 16

SPECS: Final = (
    FigureSpec(
        "pipeline.ready_s", "s", "`headrace up` to every stage ready, model cached", Goal("<=", 8)
    ),
    FigureSpec(
        "pipeline.stage_start_s_max", "s",
        "slowest stage but the executor, from spawn to ready, all starting at once",
        Goal("<=", 1.5),
    ),
    FigureSpec(
        "pipeline.ttft_overhead_ms_p50", "ms",
        "40 interleaved pairs, one 32-token prompt at a time on an idle machine, the doors in "
        "turn: client's TTFT minus the engine's in process; median of the differences",
        Goal("<=", 5),
    ),
    FigureSpec("pipeline.ttft_overhead_grpc_ms_p50", "ms", "the pairs on the gRPC door"),
    FigureSpec("pipeline.ttft_overhead_nats_ms_p50", "ms", "the pairs on the NATS door"),
    FigureSpec("pipeline.ttft_ms_p50", "ms", "the chain's side of those pairs"),
    FigureSpec("pipeline.in_process_ttft_ms_p50", "ms", "the engine's side of those pairs"),
    FigureSpec(
        "pipeline.throughput_ratio_16", "",
        "5 interleaved pairs, 16 requests at once (64 tokens in, 64 out, both doors) over the same "
        "in process; median of the ratios",
        Goal(">=", 0.95),
    ),
    FigureSpec("pipeline.tok_s_16", "tokens/s", "the chain's side: output tokens over wall time"),
    FigureSpec("pipeline.in_process_tok_s_16", "tokens/s", "the engine's side"),
    FigureSpec(
        "pipeline.usage_mismatches", "",
        "64 requests at once on both doors, prompts of 8-1500 tokens: rows of the snapshot that "
        "differ from what the client sent and received, counted by the client",
        Goal("==", 0),
    ),
    FigureSpec("pipeline.unfinished", "", "of those 64, requests without a terminal", Goal("==", 0)),
    FigureSpec(
        "pipeline.conservation_gap", "",
        "accepted - (finished + cancelled + failed + expired + running + queued)", Goal("==", 0),
    ),
    FigureSpec(
        "pipeline.cancel_over_step_ms_p95", "ms",
        "24 cancels and disconnects on both doors: until the executor's credit shows the slot "
        "free, minus the median step of that stream", Goal("<=", 50),
    ),
)  # fmt: skip


def run(say: Callable[[str], None]) -> Results:
    """Start a private pipeline, measure everything, stop it. About five minutes.

    `say` is told what is measured next.
    """
    with stopped_pipeline() as rig:
        say("starting a private pipeline")
        begin = time.perf_counter()
        rig.up()
        values = {"pipeline.ready_s": time.perf_counter() - begin}
        values["pipeline.stage_start_s_max"] = _slowest_start(rig)
        values |= uvloop.run(_measure(rig, say))
        say("stopping")
    return Results(SPECS, values, circumstances(MODEL))


def _slowest_start(rig: Rig) -> float:
    return max(float(each["startup_ms"]) / 1e3 for each in rig.status()["stages"])


async def _measure(rig: Rig, say: Callable[[str], None]) -> dict[str, float]:
    async with open_site(rig, SEED) as site:
        values: dict[str, float] = {}
        say("loading the engine once more, in process")
        async with beside(rig.folder) as engine:
            say("TTFT through the chain and in process (about 80 s)")
            values |= await ttft(site, engine)
            say("throughput at 16 requests, both ways (about 80 s)")
            values |= await throughput(site, engine)
        say("cancelling and leaving (about 20 s)")
        values |= await cancel(site, SLOTS)
        say("64 requests at once, counted by the client (about 60 s)")
        values |= await usage(site)
        return values
