"""Does the database say what the client received? The client counts for itself."""

import asyncio
import json
import sys
from dataclasses import dataclass
from typing import Any, Final

from contracts.client import GenerateRequest
from stages.cli.bench.calls import Record, run_call
from stages.cli.bench.pipeline.site import Site

REQUESTS: Final = 64
SHORTEST: Final = 8
LONGEST: Final = 1500
ROWS: Final = "SELECT request_id, prompt_tokens, completion_tokens, finish_reason FROM requests"


@dataclass(frozen=True)
class Counted:
    """What the client knows of one request: the tokens it sent and those it received."""

    request_id: str | None
    prompt_tokens: int
    completion_tokens: int
    finish_reason: str | None


async def usage(site: Site) -> dict[str, float]:
    """64 requests at once on both doors, prompts of 8 to 1,500 tokens."""
    records = await asyncio.gather(
        *(run_call(site.doors[number % 2], _draw(site)) for number in range(REQUESTS))
    )
    unfinished = [record for record in records if record.complete is None]
    for record in unfinished:
        print(f"not finished: {record.refused}", file=sys.stderr)
    rows = json.loads(await asyncio.to_thread(site.rig.headrace, "sql", ROWS, "--json"))
    status = await asyncio.to_thread(site.rig.status)
    return {
        "pipeline.unfinished": len(unfinished),
        "pipeline.usage_mismatches": mismatches([_counted(site, r) for r in records], rows),
        "pipeline.conservation_gap": conservation_gap(status["conservation"]),
    }


def mismatches(counted: list[Counted], rows: list[dict[str, Any]]) -> int:
    """Requests whose row is missing, doubled, or different from the client's own count."""
    by_id: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        by_id.setdefault(row["request_id"], []).append(row)
    wrong = 0
    for each in counted:
        expected = {
            "request_id": each.request_id,
            "prompt_tokens": each.prompt_tokens,
            "completion_tokens": each.completion_tokens,
            "finish_reason": each.finish_reason,
        }
        found = by_id.get(each.request_id or "", [])
        if found != [expected]:
            print(f"mismatch: client {expected}, database {found}", file=sys.stderr)
            wrong += 1
    return wrong


def conservation_gap(law: dict[str, Any]) -> float:
    """accepted minus everything that became of it; 0 when the law balances."""
    parts = ("finished", "cancelled", "failed", "expired", "running", "queued")
    return float(law["accepted"] - sum(law[part] for part in parts))


def _draw(site: Site) -> GenerateRequest:
    return GenerateRequest(
        prompt=site.prompts.text(site.prompts.log_between(SHORTEST, LONGEST)),
        max_tokens=site.prompts.between(1, 24),
        seed=1,
        token_ids=True,
    )


def _counted(site: Site, record: Record) -> Counted:
    assert isinstance(record.request, GenerateRequest)
    return Counted(
        record.request_id,
        len(site.prompts.ids(record.request.prompt)),
        len(record.token_ids),
        record.complete.finish_reason.value if record.complete else None,
    )
