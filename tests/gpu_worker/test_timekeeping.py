"""The intervals of an executor tile its life."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.usage import IntervalEvent, Price
from gpu_worker.driver import Intervals
from gpu_worker.timekeeping import Identity, Timekeeper

ME = Identity("small-0-a", "small", "m", "z", "cpu", 1, Price(accelerator_hour=1, currency="USD"))
LAPS = st.builds(
    Intervals,
    st.integers(0, 5_000_000),
    st.integers(0, 5_000_000),
    st.integers(0, 5_000_000),
    st.integers(0, 5_000_000),
)


def parts_ms(event: IntervalEvent) -> float:
    """Sum of an event's parts."""
    return (
        event.startup_ms + event.busy_ms + event.host_ms
        + event.idle_ms + event.drain_ms + event.lost_ms
    )  # fmt: skip


@given(st.lists(LAPS, min_size=1, max_size=20), st.floats(0, 5000))
def test_reports_follow_each_other_without_gap_or_overlap(
    laps: list[Intervals], prelude_ms: float
) -> None:
    spawned = 1_700_000_000_000.0
    keeper = Timekeeper(ME, spawned, spawned + prelude_ms)
    total = Intervals()
    events = []
    for lap in laps:
        total = total.plus(lap)
        event = keeper.report(total, draining=False)
        if event is not None:
            events.append(event)
    for event in events:
        assert parts_ms(event) == pytest.approx(event.end_ms - event.start_ms, abs=1e-3)
    assert all(before.end_ms == after.start_ms for before, after in pairwise(events))
    if events:
        assert events[0].start_ms == spawned
        whole = prelude_ms + total.total_us / 1e3
        assert events[-1].end_ms == pytest.approx(spawned + whole, abs=1e-2)


def test_waiting_while_draining_is_booked_as_drain() -> None:
    keeper = Timekeeper(ME, 0.0, 0.0)
    event = keeper.report(Intervals(busy_us=1000, idle_us=2000), draining=True)
    assert event is not None
    assert (event.busy_ms, event.idle_ms, event.drain_ms) == (1.0, 0.0, 2.0)


def test_nothing_is_reported_when_no_time_passed() -> None:
    keeper = Timekeeper(ME, 0.0, 0.0)
    assert keeper.report(Intervals(), draining=False) is None
