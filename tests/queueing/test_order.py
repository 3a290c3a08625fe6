"""Who is served next."""

from bisect import bisect_left

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.client import Priority
from stages.queueing.order import Order

BUCKETS = [64, 256]
requests = st.lists(st.tuples(st.sampled_from(Priority), st.integers(1, 400)), max_size=40)


def test_priority_before_length_before_arrival() -> None:
    order = Order(BUCKETS)
    order.add("late", Priority.NORMAL, 10, 5)
    order.add("long", Priority.NORMAL, 300, 1)
    order.add("early", Priority.NORMAL, 64, 2)
    order.add("low", Priority.LOW, 10, 0)
    order.add("high", Priority.HIGH, 9999, 9)
    assert list(order) == ["high", "early", "late", "long", "low"]
    assert [order.position(name) for name in order] == [0, 1, 2, 3, 4]


@given(requests, st.data())
def test_order_equals_a_sort_after_any_removals(
    wanted: list[tuple[Priority, int]], data: st.DataObject
) -> None:
    order = Order(BUCKETS)
    for arrival, (priority, tokens) in enumerate(wanted):
        order.add(str(arrival), priority, tokens, arrival)
    gone = data.draw(st.sets(st.integers(0, max(len(wanted) - 1, 0))))
    for arrival in gone:
        assert order.remove(str(arrival)) is (arrival < len(wanted))
    left = [n for n in range(len(wanted)) if n not in gone]
    left.sort(key=lambda n: (wanted[n][0].rank, bisect_left(BUCKETS, wanted[n][1]), n))
    assert list(order) == [str(n) for n in left]
    assert order.head() == (str(left[0]) if left else None)


def test_what_is_not_waiting_has_no_position() -> None:
    order = Order(BUCKETS)
    assert not order.remove("x")
    assert order.head() is None
    with pytest.raises(KeyError):
        order.position("x")
