"""Executors and egresses are lost; accepted requests are not."""

import asyncio
import time

import nats.errors
import pytest
from pydantic import BaseModel

from contracts import subjects
from contracts.client import FinishReason
from contracts.errors import HeadraceError
from contracts.internal import CancelNotice
from contracts.sessions import Progress
from stages.queueing.ledger import State
from stages.runtime.bus import Bus
from tests.queueing.conftest import Queueing
from tests.queueing.support import (
    FakeClock,
    ScriptedEgress,
    ScriptedExecutor,
    admit,
    make_work,
    receipts,
    running,
    until,
)
from tests.support.nats import flushed


async def test_declined_goes_back_and_is_leased_again_with_the_next_credit(
    bus: Bus, queueing: Queueing, executor: ScriptedExecutor
) -> None:
    executor.answer = lambda lease: False
    executor.silent = True
    await admit(bus, make_work())
    assert (await executor.next_lease()).attempt == 1
    await asyncio.sleep(0.1)
    assert executor.leases.empty()  # not asked again before it speaks
    executor.answer = lambda lease: True
    await executor.speak()
    assert (await executor.next_lease()).attempt == 1  # it never ran
    await until(lambda: queueing.service.counters()["running"] == 1)
    assert queueing.service.counters()["leases_again"] == 0


async def test_a_fatal_refusal_fails_the_session_at_its_egress(
    bus: Bus, queueing: Queueing, executor: ScriptedExecutor, egress: ScriptedEgress
) -> None:
    executor.answer = lambda lease: "vocabulary mismatch"
    work = make_work()
    await admit(bus, work)
    failed = await asyncio.wait_for(egress.failed.get(), 20)
    assert (failed.request_id, failed.error.message) == (work.request_id, "vocabulary mismatch")
    await egress.end(work, FinishReason.ERROR)
    await until(lambda: queueing.service.counters()["failed"] == 1)


async def test_a_fatal_refusal_without_a_session_is_receipted_by_queueing(
    bus: Bus, queueing: Queueing, executor: ScriptedExecutor, egress: ScriptedEgress
) -> None:
    executor.answer = lambda lease: "no"
    egress.holds = False
    await admit(bus, make_work())
    await until(lambda: queueing.service.counters()["failed"] == 1)
    assert [receipt.finish_reason for receipt in await receipts(bus)] == [FinishReason.ERROR]


async def test_no_answer_leases_again_under_a_higher_attempt(
    bus: Bus, queueing: Queueing, executor: ScriptedExecutor
) -> None:
    executor.answer = lambda lease: None
    await admit(bus, make_work())
    assert (await executor.next_lease()).attempt == 1
    executor.answer = lambda lease: True  # its next word, after ANSWER_S, calls for another try
    assert (await executor.next_lease()).attempt == 2
    await until(lambda: queueing.service.counters()["leases_again"] == 1)


async def test_a_lease_that_the_bus_cannot_send_leaves_no_room_taken(
    bus: Bus, queueing: Queueing, executor: ScriptedExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = queueing.bus.request_bytes
    failures = iter([nats.errors.OutboundBufferLimitError(), KeyError("anything")])

    async def stumbling(subject: str, message: BaseModel | bytes, timeout_s: float) -> bytes:
        if subject == subjects.lease("x") and (error := next(failures, None)) is not None:
            raise error
        return await ask(subject, message, timeout_s)

    monkeypatch.setattr(queueing.bus, "request_bytes", stumbling)
    await admit(bus, make_work())
    assert (await executor.next_lease()).attempt == 3
    await until(lambda: queueing.service.counters()["running"] == 1)
    assert queueing.service.pools["p"].executors.known["x"].in_flight == {}


async def test_a_store_that_fails_in_any_way_gives_its_place_back(
    bus: Bus, queueing: Queueing, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*_: object) -> int:
        raise KeyError("anything")

    monkeypatch.setattr(queueing.service.store, "put", broken)
    with pytest.raises(HeadraceError):
        await admit(bus, make_work())
    bounds = queueing.service.pools["p"].bounds
    assert (bounds.requests, bounds.tokens) == (0, 0)


async def test_three_attempts_without_an_answer_end_as_an_error(
    bus: Bus, queueing: Queueing, executor: ScriptedExecutor, egress: ScriptedEgress
) -> None:
    executor.answer = lambda lease: None
    work = make_work()
    await admit(bus, work)
    for attempt in (1, 2, 3):
        assert (await executor.next_lease()).attempt == attempt
    failed = await asyncio.wait_for(egress.failed.get(), 20)
    assert failed.request_id == work.request_id


async def test_a_silent_executor_is_replaced_where_the_stream_stopped(
    bus: Bus,
    queueing: Queueing,
    executor: ScriptedExecutor,
    egress: ScriptedEgress,
) -> None:
    work = await running(bus, executor, queueing)
    egress.progress[work.request_id] = Progress(
        request_id=work.request_id, open=True, attempt=1, ids=[7, 8]
    )
    other = ScriptedExecutor(bus, "y")
    await other.start()
    executor.silent = True
    await queueing.pass_time(3.5, other, egress)
    lease = await other.next_lease()
    assert (lease.attempt, lease.resume_ids) == (2, [7, 8])
    assert lease.work.prompt_ids == work.prompt_ids
    await until(lambda: queueing.service.counters()["leases_again"] == 1)


async def test_a_silent_egress_ends_its_requests_with_our_receipt(
    bus: Bus,
    queueing: Queueing,
    executor: ScriptedExecutor,
    egress: ScriptedEgress,
) -> None:
    work = await running(bus, executor, queueing)
    await queueing.pass_time(27, executor)  # 15 s, and 10 s without another one to take them
    await until(lambda: queueing.service.counters()["failed"] == 1)
    assert await asyncio.wait_for(executor.cancelled.get(), 20) == work.request_id
    [receipt] = await receipts(bus)
    assert (receipt.finish_reason, receipt.error_code) == (FinishReason.ERROR, "internal")
    assert receipt.completion_tokens == 0
    told = await asyncio.wait_for(egress.failed.get(), 20)  # it may only have stood still
    assert told.request_id == work.request_id


async def test_an_orphan_notice_is_receipted_under_its_reason(
    bus: Bus, queueing: Queueing, executor: ScriptedExecutor, egress: ScriptedEgress
) -> None:
    work = await running(bus, executor, queueing)
    notice = CancelNotice(request_id=work.request_id, reason=FinishReason.CANCELLED, orphan=True)
    await bus.publish(subjects.cancel(work.request_id), notice)
    await until(lambda: queueing.service.counters()["cancelled"] == 1)
    assert len(await receipts(bus)) == 1


async def test_cancelled_while_the_lease_is_on_its_way_stops_it_there(
    bus: Bus, queueing: Queueing, executor: ScriptedExecutor, egress: ScriptedEgress
) -> None:
    work = make_work()
    await admit(bus, work)
    entry = queueing.service.pools["p"].ledger.get(work.request_id)
    assert entry is not None
    queueing.service.pools["p"].close(entry, FinishReason.CANCELLED, 0.0)
    assert await asyncio.wait_for(executor.cancelled.get(), 20) == work.request_id


async def test_an_executor_wrongly_taken_for_silent_stops_the_attempt_that_counts_no_more(
    bus: Bus, queueing: Queueing, executor: ScriptedExecutor, egress: ScriptedEgress
) -> None:
    work = await running(bus, executor, queueing)
    egress.progress[work.request_id] = Progress(
        request_id=work.request_id, open=True, attempt=1, ids=[7]
    )
    other = ScriptedExecutor(bus, "y")
    await other.start()
    executor.silent = True
    await queueing.pass_time(3.5, other, egress)
    assert (await other.next_lease()).attempt == 2
    await until(lambda: queueing.service.counters()["running"] == 1)
    await executor.speak()  # it lives and computes
    assert await asyncio.wait_for(executor.cancelled.get(), 20) == work.request_id
    assert work.request_id in other.running
    assert queueing.service.counters()["running"] == 1


async def test_an_executor_is_told_about_what_has_ended(
    bus: Bus, queueing: Queueing, executor: ScriptedExecutor
) -> None:
    executor.running["long-ended"] = (1, 64)
    await executor.speak()
    assert await asyncio.wait_for(executor.cancelled.get(), 20) == "long-ended"


async def test_a_receipt_that_never_comes_is_written_by_us(
    bus: Bus,
    queueing: Queueing,
    executor: ScriptedExecutor,
    egress: ScriptedEgress,
) -> None:
    work = await running(bus, executor, queueing)
    notice = CancelNotice(request_id=work.request_id, reason=FinishReason.CANCELLED)
    await bus.publish(subjects.cancel(work.request_id), notice)
    entry = queueing.service.pools["p"].ledger.get(work.request_id)
    assert entry is not None
    await until(lambda: entry.state is State.CLOSING)
    await queueing.pass_time(11, executor, egress)
    await until(lambda: queueing.service.counters()["cancelled"] == 1)


async def test_standing_still_ourselves_makes_nobody_silent(
    bus: Bus,
    queueing: Queueing,
    clock: FakeClock,
    executor: ScriptedExecutor,
    egress: ScriptedEgress,
) -> None:
    queueing.watch_itself()
    await running(bus, executor, queueing)
    executor.silent = True
    clock.seconds += 10
    time.sleep(2.5)  # the loop stands still, as after a suspended machine
    await asyncio.sleep(0.3)
    counters = queueing.service.counters()
    assert (counters["running"], counters["failed"]) == (1, 0)


async def test_the_owner_of_a_pool_that_a_request_has_left_ends_nothing_here(
    bus: Bus, queueing: Queueing
) -> None:
    work, late = make_work(), make_work()
    await admit(bus, work)
    for request_id in (work.request_id, late.request_id):
        word = CancelNotice(
            request_id=request_id, reason=FinishReason.CANCELLED, pool="left", epoch=3
        )
        await bus.publish(subjects.cancel(request_id), word)
    await flushed(bus)
    await admit(bus, late)
    states = [entry.state for entry in queueing.service.pools["p"].ledger]
    assert states == [State.QUEUED, State.QUEUED]
