"""Many requests at once on both doors: all finish, and the database says what the client received."""

import pytest

from stages.cli.bench.pipeline.site import Site
from stages.cli.bench.pipeline.usage import Counted, conservation_gap, mismatches, usage


@pytest.mark.slow
@pytest.mark.timeout(400)
async def test_sixty_four_requests_finish_and_are_counted_exactly(site: Site) -> None:
    figures = await usage(site)
    assert figures["pipeline.unfinished"] == 0
    assert figures["pipeline.usage_mismatches"] == 0
    assert figures["pipeline.conservation_gap"] == 0


def test_the_comparison_sees_missing_doubled_and_different_rows() -> None:
    mine = [Counted("a", 3, 4, "stop"), Counted("b", 5, 6, "length")]
    right = [
        {"request_id": "a", "prompt_tokens": 3, "completion_tokens": 4, "finish_reason": "stop"},
        {"request_id": "b", "prompt_tokens": 5, "completion_tokens": 6, "finish_reason": "length"},
    ]
    assert mismatches(mine, right) == 0
    assert mismatches(mine, right[:1]) == 1
    assert mismatches(mine, [*right, right[0]]) == 1
    assert mismatches(mine, [right[0], {**right[1], "completion_tokens": 7}]) == 1


def test_the_law_notices_a_lost_request() -> None:
    law = dict.fromkeys(("finished", "cancelled", "failed", "expired", "running", "queued"), 2)
    assert conservation_gap({"accepted": 12, **law}) == 0
    assert conservation_gap({"accepted": 13, **law}) == 1
