"""Tokens again: from a running attempt, from one that ended, and not for ever."""

import contextlib

import pytest

from contracts.errors import ErrorCode, HeadraceError
from contracts.sessions import RepairCall
from gpu_worker import repairs as repairs_module
from gpu_worker.repairs import KEPT_S, Repairs
from gpu_worker.roster import Held, Roster
from tests.gpu_worker.test_roster import lease


class Room:
    """A roster, what it remembers, and a clock."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.roster = Roster(slots=8, kv_tokens=8192, block_size=64)
        self.repairs = Repairs(self.roster, lambda: self.now_s)

    def run(self, name: str, ids: list[int], attempt: int = 1, resumed: int = 0) -> Held:
        """An attempt that has made `ids`, the first `resumed` of them by an earlier attempt."""
        given = lease(name, attempt=attempt).model_copy(update={"resume_ids": ids[:resumed]})
        held = self.roster.take(given)
        assert held is not None
        held.ids += ids[resumed:]
        return held

    def end(self, held: Held, finish: str, error: str | None = None) -> None:
        """It is over."""
        self.roster.release(held.engine_id)
        self.repairs.keep(held, finish, error)

    def knows(self, name: str) -> bool:
        """Whether a call about it is answered."""
        with contextlib.suppress(HeadraceError):
            return self.repairs.answer(RepairCall(request_id=name, offset=0)) is not None
        return False


def test_resumed_tokens_are_part_of_the_answer_and_offsets_count_them() -> None:
    room = Room()
    held = room.run("a", [5, 6, 7, 8], attempt=2, resumed=2)
    reply = room.repairs.answer(RepairCall(request_id="a", offset=1))
    assert (reply.attempt, reply.offset, reply.ids, reply.finish) == (2, 1, [6, 7, 8], None)
    assert room.repairs.answer(RepairCall(request_id="a", offset=9)).ids == []
    assert held.egress == "egress-0-a"
    room.repairs.answer(RepairCall(request_id="a", offset=4, egress="egress-1-b"))
    assert held.egress == "egress-1-b"


def test_an_ended_attempt_is_kept_with_its_end_for_a_while() -> None:
    room = Room()
    room.repairs.fingerprint = "print"  # else whoever takes it over calls the answer inexact
    room.end(room.run("a", [1, 2]), "stop")
    room.end(room.run("b", [], attempt=3), "error", "too long")
    room.end(room.run("c", [1]), "moved")
    reply = room.repairs.answer(RepairCall(request_id="a", offset=0, egress="egress-1-b"))
    assert (reply.ids, reply.finish, reply.error) == ([1, 2], "stop", None)
    assert reply.fingerprint == "print"
    reply = room.repairs.answer(RepairCall(request_id="b", offset=0))
    assert (reply.attempt, reply.finish, reply.error) == (3, "error", "too long")
    assert room.repairs.answer(RepairCall(request_id="c", offset=0)).finish is None
    room.now_s = KEPT_S + 1
    assert not room.knows("a")
    with pytest.raises(HeadraceError) as missing:
        room.repairs.answer(RepairCall(request_id="never-here", offset=0))
    assert missing.value.info.code is ErrorCode.NOT_FOUND


def test_the_newest_attempt_answers_whether_it_runs_or_has_ended() -> None:
    room = Room()
    older, newer = room.run("a", [1], attempt=1), room.run("a", [1, 2], attempt=2, resumed=1)
    room.end(older, "cancelled")
    assert room.repairs.answer(RepairCall(request_id="a", offset=0)).attempt == 2
    room.end(newer, "length")
    reply = room.repairs.answer(RepairCall(request_id="a", offset=0))
    assert (reply.attempt, reply.ids, reply.finish) == (2, [1, 2], "length")
    late = Held(lease("a", attempt=1), 64)
    room.repairs.keep(late, "cancelled")
    assert room.repairs.answer(RepairCall(request_id="a", offset=0)).attempt == 2


def test_what_is_kept_is_bounded_and_the_oldest_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repairs_module, "KEPT_TOKENS", 10)
    monkeypatch.setattr(repairs_module, "KEPT_ATTEMPTS", 3)
    room = Room()
    for name in "abcd":
        room.end(room.run(name, [1]), "stop")
    assert [room.knows(name) for name in "abcd"] == [False, True, True, True]
    room.end(room.run("long", [1] * 9), "stop")
    assert [room.knows(name) for name in ("b", "c", "d", "long")] == [False, False, True, True]
