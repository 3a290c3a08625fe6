"""Usage, cost and times of a closed session."""

import pytest

from contracts.client import FinishReason
from stages.egress.output import End
from stages.egress.receipt import make_complete, make_receipt
from stages.egress.session import Session
from tests.egress.builders import NOW, Letters, make_item, make_terms, make_topology


def closed() -> Session:
    session = Session("r1", "grpc", NOW, NOW)
    session.settle(make_terms(), Letters(), NOW + 4)
    session.take(make_item("ab", 0, us=1_000_000), NOW + 20, NOW + 21)
    session.take(make_item("c", 2, us=2_000_000), NOW + 30, NOW + 31)
    session.take(make_item("d", 3, us=3_000_000, attempt=2, finish="stop"), NOW + 40, NOW + 41)
    return session


def test_complete_counts_bills_and_times() -> None:
    complete = make_complete(closed(), make_topology())
    assert complete.finish_reason is FinishReason.STOP
    assert (complete.usage.prompt_tokens, complete.usage.completion_tokens) == (7, 4)
    assert (complete.usage.total_tokens, complete.usage.cached_tokens) == (11, 2)
    assert complete.cost.accelerator_s == pytest.approx(5.0)  # both attempts
    assert complete.cost.amount == pytest.approx(0.005)
    timings = complete.timings
    assert (timings.queue_ms, timings.ttft_ms, timings.tpot_ms) == (2, 21, 10)
    assert timings.stages == {
        "ingress": 1,
        "routing": 1,
        "queueing": 2,
        "queue": 2,
        "prefill": 14,
        "decode": 20,
        "egress": 1,
    }
    assert sum(timings.stages.values()) == timings.e2e_ms == 41


def test_receipt_says_the_same_and_names_its_key() -> None:
    session = closed()
    complete = make_complete(session, make_topology())
    assert session.terms is not None
    receipt = make_receipt(session.terms, complete, "egress-0-aaaa", 2, NOW)
    assert receipt.key == "r1:receipt"
    assert receipt.completion_tokens == complete.usage.completion_tokens
    assert receipt.stages == complete.timings.stages
    assert (receipt.attempt, receipt.metadata, receipt.door) == (2, {"team": "a"}, "grpc")


def test_a_request_that_never_ran_spent_its_time_in_the_queue() -> None:
    session = Session("r1", "grpc", NOW, NOW)
    session.settle(make_terms(), Letters(), NOW + 4)
    session.finish(End(FinishReason.CANCELLED), NOW + 104)
    timings = make_complete(session, make_topology()).timings
    assert (timings.queue_ms, timings.ttft_ms, timings.tpot_ms) == (None, None, None)
    assert timings.stages == {"ingress": 1, "routing": 1, "queueing": 2, "queue": 100}
