"""Attempts whose executor is gone get one row, from its last report or with zeros."""

import asyncio
from typing import Any

import pytest

from contracts import subjects
from contracts.sessions import Progress
from contracts.usage import USAGE_EVENT, AttemptEvent, AttemptReport, Price
from stages.queueing.attempts import KEEP_S, Attempts, Reports
from stages.runtime.bus import Bus
from stages.runtime.clock import now_ms
from stages.runtime.sender import DurableSender
from stages.runtime.streams import ensure_streams
from tests.queueing.conftest import Queueing
from tests.queueing.support import (
    FakeClock,
    ScriptedEgress,
    ScriptedExecutor,
    make_work,
    running,
)
from tests.support.stages import topology


def row(request_id: str = "r", attempt: int = 1, tokens: int = 5, **changes: Any) -> AttemptEvent:
    fields: dict[str, Any] = {
        "request_id": request_id, "attempt": attempt, "tenant": "acme", "pool": "p", "model": "m",
        "executor": "x", "generation": 1, "finish": "lost", "prompt_tokens": 10,
        "cached_tokens": 0, "computed_tokens": 10 + tokens, "completion_tokens": tokens,
        "accelerator_s": 0.5, "started_ms": 1.0, "finished_ms": 2.0,
        "price": Price(accelerator_hour=1.0, currency="USD"),
    }  # fmt: skip
    return AttemptEvent(**fields | changes)


def report(*rows: AttemptEvent, sent_ms: float = 1.0) -> AttemptReport:
    return AttemptReport(executor="x", pool="p", sent_ms=sent_ms, attempts=list(rows))


def test_the_newest_report_counts() -> None:
    reports = Reports()
    reports.hear(report(row(tokens=7), sent_ms=2.0), 1.0)
    reports.hear(report(row(tokens=5), sent_ms=1.0), 1.1)  # overtaken on the way
    last = reports.last("r", 1)
    assert last is not None
    assert last.completion_tokens == 7
    assert reports.last("r", 2) is None


def test_what_has_its_row_is_not_brought_back_by_a_late_report() -> None:
    reports = Reports()
    reports.closed("r", 1, 1.0)
    reports.hear(report(row(), sent_ms=9.0), 1.1)
    assert reports.is_closed("r", 1)
    assert reports.last("r", 1) is None


def test_memory_is_bounded_by_age_and_number(monkeypatch: pytest.MonkeyPatch) -> None:
    reports = Reports()
    reports.hear(report(row("old")), 0.0)
    reports.hear(report(row("new")), KEEP_S + 1)
    assert (len(reports), reports.last("old", 1)) == (1, None)
    monkeypatch.setattr("stages.queueing.attempts.KEEP_MAX", 3)
    for number in range(10):
        reports.hear(report(row(f"r{number}")), KEEP_S + 2)
    assert len(reports) == 3


async def rows(bus: Bus) -> list[AttemptEvent]:
    stream = await bus.js.stream_info(subjects.USAGE_STREAM)
    found = []
    for seq in range(1, stream.state.last_seq + 1):
        message = await bus.js.get_msg(subjects.USAGE_STREAM, seq)
        event = USAGE_EVENT.validate_json(message.data or b"")
        assert isinstance(event, AttemptEvent)
        found.append(event)
    return found


@pytest.fixture
async def attempts(bus: Bus, clock: FakeClock) -> Attempts:
    await ensure_streams(bus.js, topology())
    made = Attempts(DurableSender(bus), topology(), 3, clock.now_s, clock.now_ms)
    await bus.listen(subjects.usage("attempt", "*"), made.on_row)
    await bus.listen(subjects.attempts("p"), made.on_report)
    await bus.flush()
    return made


async def test_a_lost_attempt_is_closed_once_from_its_last_report(
    bus: Bus, attempts: Attempts
) -> None:
    work = make_work()
    await bus.publish(subjects.attempts("p"), report(row(work.request_id, tokens=9)))
    async with asyncio.timeout(20):
        while attempts.reports.last(work.request_id, 1) is None:
            await asyncio.sleep(0.01)
    for _ in range(2):
        attempts.lost(work, 10, 1, "x", epoch=4)
    assert await attempts.drain(20)
    [stored] = await rows(bus)
    assert (stored.finish, stored.completion_tokens, stored.executor) == ("lost", 9, "x")
    assert stored.key == f"{work.request_id}:1:lost"


async def test_two_replicas_close_it_once(bus: Bus, attempts: Attempts, clock: FakeClock) -> None:
    """An owner that died after storing, and the next one that has not heard of the row."""
    other = Attempts(DurableSender(bus), topology(), 3, clock.now_s, clock.now_ms)
    work = make_work()
    for one in (attempts, other):
        one.reports.hear(report(row(work.request_id)), 1.0)
        one.lost(work, 10, 1, "x")
        assert await one.drain(20)
    assert len(await rows(bus)) == 1


async def test_without_a_report_it_has_zeros_and_its_pools_price(
    bus: Bus, attempts: Attempts
) -> None:
    work = make_work()
    attempts.lost(work, 10, 2, "x", epoch=4, leased_ms=now_ms())
    attempts.lost(work, 10, 1, None)  # nobody knows where it ran, if it did
    assert await attempts.drain(20)
    [stored] = await rows(bus)
    assert (stored.attempt, stored.executor, stored.epoch) == (2, "x", 4)
    assert (stored.computed_tokens, stored.accelerator_s, stored.prompt_tokens) == (0, 0.0, 10)
    assert (stored.price.currency, stored.generation, stored.tenant) == ("USD", 3, "acme")


async def test_one_that_ended_in_order_is_left_alone(bus: Bus, attempts: Attempts) -> None:
    work = make_work()
    final = row(work.request_id, finish="moved")
    await bus.store(subjects.usage("attempt", "p"), final, final.key, 5)
    async with asyncio.timeout(20):
        while not attempts.reports.is_closed(work.request_id, 1):
            await asyncio.sleep(0.01)
    attempts.lost(work, 10, 1, "x")
    assert await attempts.drain(20)
    assert [each.finish for each in await rows(bus)] == ["moved"]


async def test_a_new_owner_closes_what_was_reported_before_it(
    bus: Bus, attempts: Attempts, clock: FakeClock
) -> None:
    """The executor and the owner that leased were killed together."""
    attempts.reports.hear(report(row("r"), row("lives", executor="y")), clock.now_s())
    attempts.reports.hear(report(row("other", pool="q")), clock.now_s())
    attempts.sweep("p", lambda _: False)  # heard a moment ago: its own rows may be on their way
    assert await rows(bus) == []
    clock.seconds += 5
    attempts.sweep("p", lambda name: name == "y")
    assert await attempts.drain(20)
    assert [each.request_id for each in await rows(bus)] == ["r"]


async def test_a_dead_executors_attempt_is_closed_by_the_service(
    bus: Bus, queueing: Queueing, executor: ScriptedExecutor, egress: ScriptedEgress
) -> None:
    work = await running(bus, executor, queueing)
    egress.progress[work.request_id] = Progress(
        request_id=work.request_id, open=True, attempt=1, ids=[5, 6]
    )
    await bus.publish(subjects.attempts("p"), report(row(work.request_id, tokens=2)))
    executor.silent = True
    other = ScriptedExecutor(bus, "y")
    await other.start()
    await queueing.pass_time(4, other, egress)
    lease = await other.next_lease()
    assert (lease.attempt, lease.resume_ids) == (2, [5, 6])
    assert await queueing.service.attempts.drain(20)
    [stored] = await rows(bus)
    assert (stored.key, stored.completion_tokens) == (f"{work.request_id}:1:lost", 2)
