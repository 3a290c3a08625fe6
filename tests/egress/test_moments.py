"""Figures of a request."""

from stages.egress.moments import Moments
from tests.egress.builders import NOW, make_terms


def test_a_clock_that_was_set_back_gives_zero_not_less() -> None:
    moments = Moments(NOW)
    moments.frame(NOW - 50, NOW - 40)
    moments.chunk(1, NOW - 30)
    moments.chunk(3, NOW - 60)
    moments.finished = NOW - 70
    timings = moments.timings(make_terms().work.stamps)
    figures = [timings.queue_ms, timings.ttft_ms, timings.tpot_ms, timings.e2e_ms]
    assert figures == [0, 0, 0, 0]
    assert min(timings.stages.values()) >= 0
