"""What is remembered of sessions that are not here any more."""

from contracts.client import FinishReason
from stages.egress.closed import Closed


def test_a_record_that_is_replaced_takes_no_room_twice() -> None:
    closed = Closed(records_bytes=10)
    for _ in range(5):
        closed.keep("r1", b"12345678", 0)
    assert closed.record("r1") == b"12345678"
    closed.keep("r2", b"12", 0)
    assert closed.record("r1") is not None
    closed.keep("r3", b"1", 0)
    assert (closed.record("r1"), closed.record("r2")) == (None, b"12")


def test_of_a_session_that_moved_queueing_hears_nothing_here() -> None:
    closed = Closed()
    closed.add("here", "demo", 1, 0)
    closed.add("moved", "demo", 1, 0, moved=True)
    closed.billed("here", FinishReason.STOP, 1)
    told = closed.told("here")
    assert told is not None
    assert told.finish_reason is FinishReason.STOP
    assert closed.told("moved") is None
    assert closed.progress("moved") is not None  # it is not opened here again
    assert closed.owned("moved", "demo")
