"""An executor's credit: what is reserved is never given twice, what ended is free again."""

from hypothesis import given
from hypothesis import strategies as st

from contracts.client import Priority, Sampling
from contracts.internal import Lease, Stamps, Work
from gpu_worker.roster import Roster

BLOCK = 64


def lease(request_id: str, tokens: int = 100, attempt: int = 1) -> Lease:
    """A lease that can occupy `tokens` KV tokens."""
    work = Work(
        request_id=request_id,
        tenant="t",
        egress="egress-0-a",
        door="nats",
        route="r",
        model="m",
        model_named=False,
        pool="p",
        reason="because",
        prompt_ids=[1] * (tokens - 1),
        max_tokens=1,
        sampling=Sampling(seed=1),
        priority=Priority.NORMAL,
        deadline_ms=0,
        generation=1,
        stamps=Stamps(received=0.0),
    )
    return Lease(work=work, attempt=attempt)


def test_a_lease_reserves_whole_blocks_until_it_is_released() -> None:
    roster = Roster(slots=2, kv_tokens=256, block_size=BLOCK)
    held = roster.take(lease("a", tokens=65))
    assert held is not None
    assert (roster.free_slots, roster.free_kv_tokens) == (1, 128)
    roster.release(held.engine_id)
    assert (roster.free_slots, roster.free_kv_tokens) == (2, 256)


def test_the_same_or_an_older_attempt_is_refused_and_a_newer_one_taken() -> None:
    roster = Roster(slots=4, kv_tokens=1024, block_size=BLOCK)
    assert roster.take(lease("a", attempt=2)) is not None
    assert roster.take(lease("a", attempt=2)) is None
    assert roster.take(lease("a", attempt=1)) is None
    assert roster.take(lease("a", attempt=3)) is not None
    assert {held.lease.attempt for held in roster.attempts_of("a")} == {2, 3}


def test_cancelled_attempts_hold_their_room_but_are_not_reported_as_running() -> None:
    roster = Roster(slots=1, kv_tokens=1024, block_size=BLOCK)
    held = roster.take(lease("a"))
    assert held is not None
    held.cancelled = True
    assert roster.running == []
    assert roster.take(lease("b")) is None


@given(st.lists(st.tuples(st.integers(1, 600), st.booleans()), max_size=60))
def test_room_is_never_overcommitted_and_all_of_it_comes_back(
    steps: list[tuple[int, bool]],
) -> None:
    roster = Roster(slots=5, kv_tokens=1000, block_size=BLOCK)
    for number, (tokens, release_first) in enumerate(steps):
        if release_first and roster.all():
            roster.release(roster.all()[0].engine_id)
        roster.take(lease(f"r{number}", tokens))
        assert 0 <= roster.free_slots <= 5
        assert 0 <= roster.free_kv_tokens <= 960
    for held in roster.all():
        roster.release(held.engine_id)
    assert (roster.free_slots, roster.free_kv_tokens) == (5, 960)
