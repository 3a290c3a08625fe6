"""The figures of the lifecycle suite."""

import time
from collections.abc import Callable
from typing import Final

import uvloop

from stages.cli.bench.figures import FigureSpec, Goal, Results, circumstances
from stages.cli.bench.lifecycle.books import Books
from stages.cli.bench.lifecycle.call import Call
from stages.cli.bench.lifecycle.edits import apply_each
from stages.cli.bench.lifecycle.kills import kill_each, until_healthy
from stages.cli.bench.lifecycle.load import TOKENS, Load
from stages.cli.bench.lifecycle.revoke import revoke
from stages.cli.bench.lifecycle.site import PROMPTS, Site, open_site, topology
from stages.cli.bench.lifecycle.texts import repeats
from stages.cli.rig import MODEL, Rig, stopped_pipeline

SEEDS: Final = (1, 2, 3)

SPECS: Final = (
    FigureSpec(
        "lifecycle.lost", "",
        "accepted calls without a good terminal, of all that ran while each process was killed with "
        "-9 and the topology was changed, over 3 seeds; an error counts as lost", Goal("==", 0),
    ),
    FigureSpec(
        "lifecycle.duplicated_tokens", "",
        "offsets that came again or were left out, and texts that differ from their tokens",
        Goal("==", 0),
    ),
    FigureSpec(
        "lifecycle.usage_mismatches", "",
        "receipts that are missing, double or differ from the client's own count; attempts "
        "without exactly one closed row", Goal("==", 0),
    ),
    FigureSpec(
        "lifecycle.apply_failed_requests", "",
        "calls that failed or were not taken while the topology was changed, and refused changes",
        Goal("==", 0),
    ),
    FigureSpec(
        "lifecycle.control_gap_errors", "", "the same while control was down", Goal("==", 0)
    ),
    FigureSpec(
        "lifecycle.recovery_s_max", "s",
        "from a kill until status is healthy with another process in place, 16 calls running",
        Goal("<=", 5),
    ),
    FigureSpec(
        "lifecycle.takeover_s", "s",
        "from the kill of the queue's owner until its standby has admitted a call, slowest seed",
        Goal("<=", 3),
    ),
    FigureSpec(
        "lifecycle.revoke_s", "s",
        "from the generation without a key to the end of its streams on three doors and of its "
        "NATS connection, slowest seed", Goal("<=", 1),
    ),
    FigureSpec("lifecycle.requests", "", "calls made"),
    FigureSpec("lifecycle.resumed_attempts", "", "of their attempts, those after the first"),
    FigureSpec(
        "lifecycle.bill_difference_share_max", "", "share of the bill that nothing explains, at the end"
    ),
)  # fmt: skip
_SLOWEST: Final = (
    "lifecycle.recovery_s_max", "lifecycle.takeover_s", "lifecycle.revoke_s",
    "lifecycle.bill_difference_share_max",
)  # fmt: skip


def run(say: Callable[[str], None]) -> Results:
    """One private pipeline a seed. About ten minutes."""
    values = {spec.name: 0.0 for spec in SPECS}
    for seed in SEEDS:
        with stopped_pipeline(topology()) as rig:
            say(f"seed {seed}: starting a private pipeline")
            rig.up()

            for name, value in uvloop.run(_one_seed(rig, seed, say)).items():
                slowest = name in _SLOWEST
                values[name] = max(values[name], value) if slowest else values[name] + value
            say(f"seed {seed}: stopping")
    return Results(SPECS, values, circumstances(MODEL))


async def _one_seed(rig: Rig, seed: int, say: Callable[[str], None]) -> dict[str, float]:
    async with open_site(rig, seed) as site:
        return await _measure(site, seed, say)


async def _measure(site: Site, seed: int, say: Callable[[str], None]) -> dict[str, float]:
    """All of it once."""
    references = await _references(site)
    load = Load(site)
    load.start()
    try:
        kills, takeover_s = await kill_each(site, load, seed, say)
        windows, refused = await apply_each(site, load, say)
        revoke_s = await revoke(site, say)
        await until_healthy(site)
    finally:
        say("waiting for the calls that run")
        await load.stop()
    for call in load.lost():
        say(f"lost: {_told(call)}")
    gaps = [(one.begin, one.end) for one in kills if one.target == "control"]
    failed = {id(c): c for window in windows for c in load.failed_between(*window)}
    gap_errors = {id(c): c for gap in gaps for c in load.failed_between(*gap)}
    for call in failed.values():
        say(f"failed while the topology was changed: {_told(call)}")
    for call in gap_errors.values():
        say(f"failed while control was down: {_told(call)}")
    return {
        "lifecycle.lost": len(load.lost()),
        "lifecycle.apply_failed_requests": len(failed) + refused,
        "lifecycle.control_gap_errors": len(gap_errors),
        "lifecycle.recovery_s_max": max(one.seconds for one in kills),
        "lifecycle.takeover_s": takeover_s,
        "lifecycle.revoke_s": revoke_s,
        "lifecycle.requests": len(load.calls),
        **await _counted(site, load.calls, references, say),
    }


async def _counted(
    site: Site, calls: list[Call], references: dict[int, str], say: Callable[[str], None]
) -> dict[str, float]:
    books = Books(site)
    mismatches = await books.mismatches(calls, say)
    wrong = repeats(site, calls, references, await books.undisturbed())
    for each in wrong:
        say(f"tokens: {each}")
    return {
        "lifecycle.usage_mismatches": mismatches,
        "lifecycle.duplicated_tokens": len(wrong),
        "lifecycle.resumed_attempts": await books.later_attempts(),
        "lifecycle.bill_difference_share_max": await books.difference(),
    }


async def _references(site: Site) -> dict[int, str]:
    """What each prompt is answered with when nothing happens."""
    calls = [await site.run(Call("grpc", prompt, TOKENS)) for prompt in range(PROMPTS)]
    for call in calls:
        if call.problem is not None:
            raise RuntimeError(f"a call failed before anything was killed: {call.problem}")
    return {call.prompt: call.text for call in calls}


def _told(call: Call) -> str:
    ran_s = min(call.ended, time.monotonic()) - call.sent
    return f"{call.request_id} ({call.door}, {call.offset} tokens, {ran_s:.1f} s): {call.problem}"
