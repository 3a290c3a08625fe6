"""What becomes of a request whose executor or queueing process was lost."""

from contracts.client import FinishReason
from contracts.frames import Credit
from contracts.internal import Inventory, Progress
from stages.queueing.credit import Executor
from stages.queueing.ledger import Ledger, State
from stages.queueing.memory import KEEP_S, EarlyNotices
from stages.queueing.recovery import Verdict, adopt, judge, questions, restored
from stages.queueing.silence import Egresses, overdue, strays
from tests.queueing.support import make_entry, make_work


def test_restored_from_its_stored_bytes() -> None:
    work = make_work(prompt=7)
    entry = restored(work.model_dump_json().encode(), 3, 9)
    assert (entry.prompt_tokens, entry.tokens, entry.stream_seq) == (7, 27, 3)
    assert entry.state is State.LOST
    assert entry.attempt == 1  # the process before may have leased it
    assert entry.work.prompt_ids == []


def test_what_runs_is_adopted_at_its_highest_attempt() -> None:
    entries = [make_entry(make_work()) for _ in range(2)]
    runs = entries[0].request_id
    inventories = [
        Inventory(executor="x", pool="p", running=[(runs, 1), ("other", 1)]),
        Inventory(executor="y", pool="p", running=[(runs, 2)]),
    ]
    assert adopt(entries, inventories) == 1
    assert (entries[0].state, entries[0].executor, entries[0].attempt) == (State.RUNNING, "y", 2)
    assert entries[1].executor is None


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


def test_a_request_is_overdue_when_its_egress_cannot_end_it() -> None:
    entry, egresses = make_entry(make_work()), Egresses(0.0)
    deadline = entry.work.deadline_ms
    egress = entry.work.egress
    assert overdue(entry, egresses, 14.9, deadline - 1) is None
    assert overdue(entry, egresses, 15.1, deadline - 1) is FinishReason.ERROR
    egresses.hear("i", egress, 15.0)
    assert overdue(entry, egresses, 15.1, deadline + 9_000) is None
    assert overdue(entry, egresses, 15.1, deadline + 11_000) is FinishReason.TIMEOUT
    egresses.pardon(100.0)
    assert overdue(entry, egresses, 102.0, deadline) is None
    entry.state, entry.closing_s, entry.closing_reason = State.CLOSING, 3.0, FinishReason.CANCELLED
    assert overdue(entry, egresses, 12.0, deadline) is None  # even if its egress is silent
    assert overdue(entry, egresses, 14.0, deadline) is FinishReason.CANCELLED


def test_an_egress_that_was_replaced_is_lost_at_once() -> None:
    entry, egresses = make_entry(make_work()), Egresses(0.0)
    deadline = entry.work.deadline_ms
    egresses.hear("i", entry.work.egress, 1.0)
    egresses.hear("other", "other-0-b", 1.1)
    assert overdue(entry, egresses, 1.2, deadline - 1) is None
    egresses.hear("i", "its-successor", 1.3)
    assert overdue(entry, egresses, 1.4, deadline - 1) is FinishReason.ERROR


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
