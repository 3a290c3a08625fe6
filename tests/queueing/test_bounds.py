"""How much may wait."""

import pytest

from contracts.errors import ErrorCode, HeadraceError
from contracts.topology import QueueSection
from stages.queueing.bounds import Bounds


def bounds(**limits: int) -> Bounds:
    return Bounds("p", QueueSection(**limits))


def test_requests_beyond_the_limit_are_saturated_with_position_and_retry() -> None:
    queue = bounds(requests=2)
    queue.take(10, 0.0)
    queue.take(10, 0.0)
    with pytest.raises(HeadraceError, match="pool 'p' is full") as refused:
        queue.take(10, 0.0)
    assert refused.value.info.code is ErrorCode.SATURATED
    assert refused.value.info.position == 2
    assert refused.value.info.retry_after_s == 5.0  # nothing measured yet
    queue.give(10)
    queue.take(10, 0.0)


def test_tokens_beyond_the_limit_are_saturated_but_one_request_may_always_wait() -> None:
    queue = bounds(tokens=100)
    queue.take(500, 0.0)
    with pytest.raises(HeadraceError, match="500 tokens wait"):
        queue.take(1, 0.0)


def test_retry_follows_the_measured_drain() -> None:
    queue = bounds(requests=100)
    for _ in range(100):
        queue.take(1, 0.0)
    for tenth in range(1, 101):
        queue.drain.note(tenth / 10)  # ten a second
    assert queue.retry_after_s(10.0) == pytest.approx(5.0, abs=0.1)  # 50 at ten a second
    assert queue.retry_after_s(1000.0) == 5.0  # nothing left lately: unknown again


def test_coming_back_is_never_refused() -> None:
    queue = bounds(requests=1)
    queue.take(1, 0.0)
    queue.put(1)
    assert (queue.requests, queue.tokens) == (2, 2)
