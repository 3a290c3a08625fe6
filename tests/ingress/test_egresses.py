"""Which egress gets the next NATS client."""

import pytest

from contracts.errors import ErrorCode, HeadraceError
from contracts.internal import Beat
from stages.ingress.egresses import Egresses


def beat(incarnation: str, *, ready: bool = True) -> Beat:
    return Beat(
        stage="egress",
        instance="e",
        incarnation=incarnation,
        pid=1,
        generation=1,
        ready=ready,
        spawned_ms=0,
        sent_ms=0,
    )


def test_ready_ones_take_turns() -> None:
    egresses = Egresses()
    egresses.hear(beat("a"), 0.0)
    egresses.hear(beat("b"), 0.0)
    egresses.hear(beat("leaving", ready=False), 0.0)
    assert {egresses.pick(1.0) for _ in range(4)} == {"a", "b"}
    assert egresses.alive(1.0) == ["a", "b", "leaving"]


def test_none_alive_is_no_capacity() -> None:
    egresses = Egresses()
    egresses.hear(beat("a"), 0.0)
    egresses.drop("a")
    egresses.hear(beat("b"), 0.0)
    for now_s in (2.5, 100.0):
        with pytest.raises(HeadraceError) as refused:
            egresses.pick(now_s)
        assert refused.value.info.code is ErrorCode.NO_CAPACITY
        assert refused.value.info.retry_after_s == 1.0
