"""What becomes of a request whose executor or queueing process was lost."""

from contracts.client import FinishReason
from contracts.frames import Credit
from contracts.sessions import Progress
from contracts.topology import PoolSection
from stages.queueing.credit import Executor, Executors
from stages.queueing.ledger import Entry, Ledger, State
from stages.queueing.memory import KEEP_S, EarlyNotices
from stages.queueing.pool import PoolQueue
from stages.queueing.recovery import Verdict, judge, questions, raise_floors, restored
from stages.queueing.silence import Egresses, overdue, strays
from tests.queueing.support import make_entry, make_receipt, make_work


def test_restored_from_its_stored_bytes() -> None:
    work = make_work(prompt=7)
    entry = restored(work.model_dump_json().encode(), 3, 9)
    assert (entry.prompt_tokens, entry.tokens, entry.stream_seq) == (7, 27, 3)
    assert entry.state is State.LOST
    assert (entry.attempt, entry.floor) == (0, 0)
    assert entry.work.prompt_ids == []
    assert entry.work.stamps.stored is not None


def test_attempts_go_on_above_those_of_earlier_owners_where_an_executor_did_not_tell() -> None:
    pool = PoolQueue("p", PoolSection(model="m", kv_tokens=4096), epoch=4)
    runs, waits = lost_in(pool), lost_in(pool)
    pool.adopt("x", [(runs.request_id, 2)])
    raise_floors(pool.ledger, 4)
    assert (runs.floor, waits.floor) == (0, 30)
    pool.line_up_again(waits)
    pool.executors.hear(Credit("x", "p", 1, 1, 4096, [(runs.request_id, 2)]), 0.0)
    grant = pool.grant(0.0, 0.0)
    assert grant is not None
    assert grant.attempt == 31


def test_an_executor_that_left_in_order_is_not_missed() -> None:
    executors = Executors()
    executors.hear(Credit("x", "p", 1, 0, 0, [], draining=True), 1.0)
    executors.hear(Credit("y", "p", 1, 0, 0, []), 2.0)
    executors.forget("x")
    assert executors.vanished_s == float("-inf")
    executors.forget("y")
    assert executors.vanished_s == 2.0


def lost_in(pool: PoolQueue) -> Entry:
    entry = restored(make_work().model_dump_json().encode(), 1, 1)
    pool.ledger.accept(entry)
    return entry


def test_what_runs_is_adopted_at_its_highest_attempt() -> None:
    pool = PoolQueue("p", PoolSection(model="m", kv_tokens=4096))
    runs, waits = lost_in(pool), lost_in(pool)
    assert pool.adopt("x", [(runs.request_id, 2), ("other", 1)]) == 1
    assert pool.adopt("y", [(runs.request_id, 1)]) == 0
    assert (runs.state, runs.executor, runs.attempt) == (State.RUNNING, "x", 2)
    assert waits.executor is None


def test_an_attempt_that_was_given_back_is_not_adopted_again() -> None:
    pool = PoolQueue("p", PoolSection(model="m", kv_tokens=4096))
    entry = lost_in(pool)
    pool.adopt("x", [(entry.request_id, 1)])
    assert pool.give_back("x", [(entry.request_id, 1), ("other", 1)]) == [entry]
    assert (entry.state, entry.executor, entry.tries) == (State.LOST, None, 0)
    assert pool.adopt("x", [(entry.request_id, 1)]) == 0


def test_judgement_follows_what_the_egress_knows() -> None:
    entry = make_entry(make_work())
    entry.tries = 1
    progress = Progress(request_id=entry.request_id, open=True, attempt=4, ids=[5, 6])
    assert judge(entry, progress) is Verdict.LEASE_AGAIN
    assert (entry.attempt, entry.resume_ids) == (4, [5, 6])
    closed = progress.model_copy(update={"open": False})
    assert judge(entry, closed) is Verdict.ENDING
    billed = closed.model_copy(update={"finish_reason": FinishReason.STOP})
    assert judge(entry, billed) is Verdict.ENDED
    assert judge(entry, None) is Verdict.UNKNOWN
    entry.tries = 3
    assert judge(entry, progress) is Verdict.GIVE_UP


def test_questions_are_small_and_leave_nobody_out() -> None:
    entries = [make_entry(make_work()) for _ in range(130)]
    groups = list(questions(entries))
    assert [len(group) for group in groups] == [64, 64, 2]
    assert [entry for group in groups for entry in group] == entries
    long = [make_entry(make_work(max_tokens=200_000)) for _ in range(5)]
    assert [len(group) for group in questions(long)] == [2, 2, 1]
    assert list(questions([])) == []


def test_a_request_is_overdue_when_no_egress_can_end_it() -> None:
    entry = make_entry(make_work())
    deadline = entry.work.deadline_ms
    assert overdue(entry, 14.9, deadline - 1) is None
    entry.homeless_s = 15.0
    assert overdue(entry, 25.0, deadline - 1) is None
    assert overdue(entry, 25.1, deadline - 1) is FinishReason.ERROR
    entry.homeless_s = None
    assert overdue(entry, 15.1, deadline + 9_000) is None
    assert overdue(entry, 15.1, deadline + 11_000) is FinishReason.TIMEOUT
    entry.state, entry.closing_s, entry.closing_reason = State.CLOSING, 3.0, FinishReason.CANCELLED
    assert overdue(entry, 12.0, deadline) is None
    assert overdue(entry, 14.0, deadline) is FinishReason.CANCELLED


def test_an_egress_is_lost_when_it_is_silent_or_its_successor_beats() -> None:
    egresses = Egresses(0.0)
    assert not egresses.silent("e", 14.9)
    assert egresses.silent("e", 15.1)
    egresses.hear("i", "e", 15.0)
    egresses.hear("other", "other-0-b", 15.1)
    assert not egresses.silent("e", 15.2)
    egresses.hear("i", "its-successor", 15.3)
    assert not egresses.silent("e", 16.0)  # both beat while one drains
    assert egresses.silent("e", 16.3)
    egresses.hear("i", "e", 16.4)
    assert not egresses.silent("e", 16.5)
    assert not egresses.silent("its-successor", 16.5)
    egresses.gone("e", 16.5)
    assert egresses.silent("e", 16.5)
    assert egresses.open(16.5) == ["other-0-b", "its-successor"]
    egresses.pardon(100.0)
    assert not egresses.silent("its-successor", 102.0)


def test_strays_are_what_has_ended_and_attempts_that_count_no_more() -> None:
    ledger, entry = Ledger(), make_entry(make_work())
    ledger.accept(entry)
    executor = Executor(Credit("x", "p", 1, 1, 1, [(entry.request_id, 1), ("ended", 1)]), 0.0)
    entry.attempt = 1
    assert list(strays(executor, ledger)) == [("ended", None)]
    entry.attempt = 2
    assert list(strays(executor, ledger)) == [(entry.request_id, 1), ("ended", None)]


def test_a_notice_that_came_first_is_remembered_for_a_minute() -> None:
    early = EarlyNotices()
    early.note("a", 0.0)
    early.note("b", KEEP_S)
    assert early.take("a")
    assert not early.take("a")
    early.note("c", 2 * KEEP_S + 1)
    assert not early.take("b")


def test_a_further_answer_of_a_call_is_billed_without_the_prompt_of_the_first() -> None:
    work = make_work(prompt=7, sibling_of="first", choice=1, key_id="k")
    receipt = make_receipt(work, FinishReason.ERROR)
    assert (receipt.prompt_tokens, receipt.sibling_of, receipt.choice) == (0, "first", 1)
    assert receipt.key_id == "k"
    assert make_receipt(make_work(prompt=7), FinishReason.ERROR).prompt_tokens == 7
