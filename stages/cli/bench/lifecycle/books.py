"""Receipts and attempts against what the clients counted."""

import asyncio
import json
import time
from collections.abc import Callable
from typing import Any, Final

from stages.cli.bench.lifecycle.call import Call
from stages.cli.bench.lifecycle.site import Site

SETTLED_S: Final = 60.0  # receipts, and the attempts of the killed, may come a while after the end
RECEIPTS: Final = """
    SELECT request_id, prompt_tokens, completion_tokens, finish_reason, attempts, lost_attempts
    FROM requests
"""
# Of a request that ran: attempts 1, 2, ... have one closed row each, the delivering one among them.
# A lost attempt may have delivered more than its last report knew: there sums say nothing.
ATTEMPTS: Final = """
    WITH taken AS (
        SELECT
            request_id,
            count(*) AS attempts,
            max(attempt) AS newest,
            count_if(finish = 'lost') AS lost,
            sum(completion_tokens) AS sampled
        FROM closed_attempts
        GROUP BY request_id
    )
    SELECT request_id, receipts.attempt, completion_tokens, attempts, newest, lost, sampled
    FROM receipts
    LEFT JOIN taken USING (request_id)
    WHERE
        (receipts.attempt > 0 AND attempts IS NULL)
        OR attempts <> newest
        OR newest < receipts.attempt
        OR (lost = 0 AND sampled < completion_tokens)
"""
DOUBLED: Final = """
    SELECT request_id, count(*) AS receipts FROM receipts GROUP BY request_id HAVING count(*) > 1
"""
DIFFERENCE: Final = "SELECT max(abs(difference_share)) AS share FROM reconciliation"


class Books:
    """What the database says at the end."""

    def __init__(self, site: Site) -> None:
        self._site = site

    async def mismatches(self, calls: list[Call], say: Callable[[str], None]) -> int:
        """How much differs, once nothing changes any more or `SETTLED_S` has passed."""
        until = time.monotonic() + SETTLED_S
        while (wrong := await self._wrong(calls)) and time.monotonic() < until:  # noqa: ASYNC110
            await asyncio.sleep(1.0)
        for each in wrong:
            say(f"mismatch: {each}")
        return len(wrong)

    async def _wrong(self, calls: list[Call]) -> list[str]:
        receipts = {row["request_id"]: row for row in await self._rows(RECEIPTS)}
        wrong = [self._differs(call, receipts) for call in calls if call.was_accepted]
        wrong += [f"two receipts: {row}" for row in await self._rows(DOUBLED)]
        wrong += [f"attempts: {row}" for row in await self._rows(ATTEMPTS)]
        return [each for each in wrong if each is not None]

    def _differs(self, call: Call, receipts: dict[str, dict[str, Any]]) -> str | None:
        assert call.request_id is not None
        row = receipts.get(call.request_id)
        if row is None:
            return f"no receipt of {call.request_id} ({call.door}, {call.problem or 'fine'})"
        if call.problem is not None:
            return None  # counted as lost
        prompt = len(self._site.prompts.ids(self._site.texts[call.prompt]))
        expected = (prompt, call.tokens, "length", (prompt, call.tokens))
        found = (
            row["prompt_tokens"], row["completion_tokens"], row["finish_reason"], call.usage
        )  # fmt: skip
        if found == expected:
            return None
        return f"{call.request_id} ({call.door}): expected {expected}, found {found}"

    async def undisturbed(self) -> set[str]:
        """Requests that ran in one attempt: their text is known beforehand."""
        rows = await self._rows(RECEIPTS)
        return {row["request_id"] for row in rows if row["attempts"] == 1}

    async def later_attempts(self) -> int:
        """Attempts beyond the first, of all requests."""
        return sum(max(0, row["attempts"] - 1) for row in await self._rows(RECEIPTS))

    async def difference(self) -> float:
        """Share of the bill that nothing explains."""
        [row] = await self._rows(DIFFERENCE)
        return float(row["share"] or 0.0)

    async def _rows(self, query: str) -> list[dict[str, Any]]:
        words = ("sql", query, "--json", "--max-rows", "1000000")
        found: list[dict[str, Any]] = json.loads(
            await asyncio.to_thread(self._site.rig.headrace, *words)
        )
        return found
