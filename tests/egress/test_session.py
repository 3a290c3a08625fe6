"""A session's life, without a bus and with a clock of its own."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.client import FinishReason
from contracts.errors import ErrorCode, ErrorInfo
from contracts.frames import TokenItem
from stages.egress.output import NOTHING, End, Step
from stages.egress.session import UNSETTLED_MS, Phase, Session
from tests.egress.builders import FAR, NOW, Letters, ids_of, make_item, make_terms

CANCEL = End(FinishReason.CANCELLED)


def opened() -> Session:
    return Session("r1", "grpc", NOW, NOW)


def accepted(**terms: Any) -> Session:
    session = opened()
    assert session.settle(make_terms(**terms), Letters(), NOW + 4) == NOTHING
    return session


def feed(session: Session, *items: TokenItem) -> tuple[str, Step]:
    """All text of these items and the last step."""
    text, step = "", NOTHING
    for at, item in enumerate(items):
        step = session.take(item, NOW + 10 + at, NOW + 10 + at)
        text += step.chunk.text if step.chunk is not None else ""
    return text, step


def test_text_flows_and_the_executor_ends_it() -> None:
    session = accepted()
    assert session.phase is Phase.ACCEPTED
    text, step = feed(session, make_item("He", 0), make_item("llo", 2, finish="length"))
    assert text == "Hello"
    assert step.end == End(FinishReason.LENGTH, running=False)
    assert (session.tokens, session.phase) == (5, Phase.CLOSED)


def test_offsets_and_seq_count_what_went_before() -> None:
    session = accepted(token_ids=True)
    first = session.take(make_item("ab", 0), NOW, NOW).chunk
    second = session.take(make_item("c", 2), NOW, NOW).chunk
    assert first is not None
    assert second is not None
    assert (first.seq, first.offset, first.token_ids) == (0, 0, ids_of("ab"))
    assert (second.seq, second.offset, second.token_ids) == (1, 2, ids_of("c"))


def test_repeats_and_old_attempts_are_dropped() -> None:
    session = accepted()
    text, _ = feed(
        session,
        make_item("ab", 0),
        make_item("ab", 0),
        make_item("bc", 1, attempt=2),
        make_item("X", 3),
        make_item("d", 3, attempt=2, finish="stop"),
    )
    assert text == "abcd"
    assert session.assembly.late_items == 1


def test_frames_before_the_terms_wait_for_them() -> None:
    session = opened()
    assert session.take(make_item("ab", 0), NOW, NOW) == NOTHING
    assert session.take(make_item("c", 2, finish="stop"), NOW, NOW) == NOTHING
    step = session.settle(make_terms(), Letters(), NOW + 5)
    assert step.chunk is not None
    assert step.chunk.text == "abc"
    assert step.end == End(FinishReason.STOP, running=False)


def test_a_gap_that_is_filled_does_no_harm() -> None:
    session = accepted()
    text, _ = feed(session, make_item("c", 2), make_item("ab", 0), make_item("d", 3))
    assert text == "abcd"
    assert session.wake_ms == FAR


@pytest.mark.parametrize("finish", ["cancelled", "moved", "lost"])
def test_an_attempt_that_was_stopped_does_not_end_its_request(finish: str) -> None:
    """Seen after a restart of nats-server: queueing stopped an attempt that another one replaced."""
    session = accepted()
    text, step = feed(session, make_item("ab", 0), make_item("", 2, finish=finish))
    assert (text, step.end) == ("ab", None)
    text, step = feed(session, make_item("c", 2, attempt=2, finish="stop"))
    assert (text, step.end) == ("c", End(FinishReason.STOP, running=False))


def test_a_gap_that_stays_is_no_error_a_new_attempt_closes_it() -> None:
    session = accepted()
    feed(session, make_item("a", 0), make_item("c", 2))
    assert session.assembly.gap
    assert session.tick(session.wake_ms - 1) == NOTHING
    text, _ = feed(session, make_item("bcd", 1, attempt=2))
    assert text == "bcd"
    assert not session.assembly.gap


def test_a_stop_string_cuts_text_and_tokens() -> None:
    session = accepted(stop=["END"], token_ids=True)
    text, step = feed(session, make_item("one E", 0), make_item("NDmore", 5))
    assert text == "one "
    assert step.end == End(FinishReason.STOP, running=True)
    assert session.tokens == 7  # up to the D that completed it
    assert step.chunk is not None
    assert step.chunk.token_ids == ids_of("ND")


def test_held_back_text_comes_at_the_end() -> None:
    session = accepted(stop=["END"])
    text, _ = feed(session, make_item("one EN", 0), make_item([], 6, finish="length"))
    assert text == "one EN"


def test_half_a_character_waits_for_its_other_half() -> None:
    session = accepted()
    assert session.take(make_item([300], 0), NOW, NOW).chunk is None
    chunk = session.take(make_item([301], 1), NOW, NOW).chunk
    assert chunk is not None
    assert (chunk.text, chunk.offset) == ("é", 0)


def test_deadline_and_admission_limit() -> None:
    session = accepted(deadline_ms=int(NOW) + 500)
    end = session.tick(NOW + 500).end
    assert end is not None
    assert end.reason is FinishReason.TIMEOUT
    waiting = opened()
    end = waiting.tick(NOW + UNSETTLED_MS).end
    assert end is not None
    assert end.orphan


def test_cancel_before_the_terms_ends_once_they_come() -> None:
    session = opened()
    assert session.finish(CANCEL, NOW) == NOTHING
    assert session.settle(make_terms(), Letters(), NOW + 1).end == CANCEL


@pytest.mark.parametrize(
    ("code", "orphan"), [(ErrorCode.SATURATED, False), (ErrorCode.DEADLINE_EXCEEDED, True)]
)
def test_an_unclear_refusal_is_closed_by_queueing(code: ErrorCode, orphan: bool) -> None:
    end = opened().refuse(ErrorInfo(code=code, message="no"), NOW).end
    assert end is not None
    assert (end.running, end.orphan) == (False, orphan)


def test_a_client_that_left_pays_only_what_it_got() -> None:
    session = accepted(token_ids=True)
    feed(session, make_item("ab", 0), make_item("cd", 2), make_item("ef", 4))
    step = session.leave(FinishReason.CANCELLED, 2, NOW + 20)
    assert step.end == CANCEL
    assert session.tokens == 2


def test_progress_reports_contiguous_tokens() -> None:
    session = accepted()
    feed(session, make_item("ab", 0, attempt=2), make_item("d", 3, attempt=2))
    progress = session.progress()
    assert (progress.open, progress.attempt, progress.ids) == (True, 2, ids_of("ab"))


@given(st.data())
def test_any_mix_of_repeats_attempts_and_order_gives_one_text_and_one_end(
    data: st.DataObject,
) -> None:
    text = data.draw(st.text(alphabet="abc", min_size=1, max_size=12))
    session, got, ends = accepted(token_ids=True), "", 0
    for attempt in range(1, data.draw(st.integers(1, 3)) + 1):
        cuts = sorted(data.draw(st.sets(st.integers(1, len(text)), max_size=4)) | {len(text)})
        start = data.draw(st.integers(0, len(session.assembly.ids)))
        cuts = [cut for cut in cuts if cut > start] or [len(text)]
        starts = [start, *cuts[:-1]]
        items = [
            make_item(text[a:b], a, attempt=attempt) for a, b in zip(starts, cuts, strict=True)
        ]
        for item in data.draw(st.permutations([*items, items[0]])):
            step = session.take(item, NOW, NOW)
            got += step.chunk.text if step.chunk is not None else ""
    last = make_item("", len(text), attempt=3, finish="stop")
    for event in data.draw(st.permutations(["finish", "cancel", "tick"])):
        step = {
            "finish": lambda: session.take(last, NOW, NOW),
            "cancel": lambda: session.finish(CANCEL, NOW),
            "tick": lambda: session.tick(FAR),
        }[event]()
        ends += step.end is not None
    assert (got, ends, session.tokens) == (text, 1, len(text))
