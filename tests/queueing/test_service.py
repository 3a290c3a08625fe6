"""The undisturbed way of a request through queueing, over a real bus."""

import asyncio

import pytest

from contracts import subjects
from contracts.client import FinishReason, Priority
from contracts.errors import ErrorCode, HeadraceError
from contracts.internal import AdmitReply, CancelNotice
from contracts.topology import Topology
from stages.runtime.bus import Bus
from tests.queueing.conftest import Queueing
from tests.queueing.support import (
    FakeClock,
    ScriptedEgress,
    ScriptedExecutor,
    admit,
    make_work,
    until,
)
from tests.support.stages import topology


async def stored(bus: Bus) -> int:
    return int((await bus.js.stream_info(subjects.QUEUE_STREAM)).state.messages)


async def test_admitted_stored_leased_ended_deleted(
    bus: Bus, queueing: Queueing, executor: ScriptedExecutor, egress: ScriptedEgress
) -> None:
    work = make_work(prompt=3)
    reply = await admit(bus, work)
    assert (reply.position, reply.prompt_tokens, reply.work.prompt_ids) == (0, 3, [])
    assert reply.work.stamps.stored is not None
    lease = await executor.next_lease()
    assert (lease.attempt, lease.work.prompt_ids, lease.resume_ids) == (1, [0, 1, 2], [])
    assert await stored(bus) == 1
    await until(lambda: queueing.service.counters()["running"] == 1)
    await egress.end(work, FinishReason.LENGTH)
    await until(lambda: queueing.service.counters()["finished"] == 1)
    async with asyncio.timeout(20):
        while await stored(bus):
            await asyncio.sleep(0.01)
    counters = queueing.service.counters()
    assert (counters["accepted"], counters["running"], counters["queued"]) == (1, 0, 0)
    assert counters["leases"] == 1


async def test_order_and_credit_decide_who_is_leased_next(
    bus: Bus, executor: ScriptedExecutor, egress: ScriptedEgress
) -> None:
    first = [make_work() for _ in range(2)]
    for work in first:
        await admit(bus, work)
        await executor.next_lease()
    low, high = make_work(priority=Priority.LOW), make_work(priority=Priority.HIGH)
    assert (await admit(bus, low)).position == 0
    assert (await admit(bus, high)).position == 0
    assert executor.leases.empty()  # both slots are taken
    await egress.end(first[0], FinishReason.STOP)
    await executor.finish(first[0].request_id)
    assert (await executor.next_lease()).work.request_id == high.request_id
    assert executor.most_running == 2


async def test_a_burst_never_exceeds_the_slots_and_all_finish(
    bus: Bus, queueing: Queueing, executor: ScriptedExecutor, egress: ScriptedEgress
) -> None:
    works = {work.request_id: work for work in (make_work() for _ in range(30))}
    replies = await asyncio.gather(*(admit(bus, work) for work in works.values()))
    assert len(replies) == 30
    for _ in range(30):
        lease = await executor.next_lease()
        await egress.end(works[lease.work.request_id], FinishReason.STOP)
        await executor.finish(lease.work.request_id)
    await until(lambda: queueing.service.counters()["finished"] == 30)
    assert executor.most_running == 2


async def test_bounds_refuse_with_retry_and_position(
    bus: Bus, queueing: Queueing, egress: ScriptedEgress
) -> None:
    queueing.service.pools["p"].bounds._limits = (
        topology(pools={"p": {"model": "m", "queue": {"requests": 2}}}).pools["p"].queue
    )
    await admit(bus, make_work())
    await admit(bus, make_work())
    with pytest.raises(HeadraceError) as refused:
        await admit(bus, make_work())
    assert refused.value.info.code is ErrorCode.SATURATED
    assert refused.value.info.position == 2
    assert refused.value.info.retry_after_s is not None
    assert queueing.service.counters()["refused"] == 1
    assert await stored(bus) == 2


async def test_a_full_store_is_saturated(bus: Bus, queueing: Queueing) -> None:
    info = (await bus.js.stream_info(subjects.QUEUE_STREAM)).config
    info.max_bytes = 100
    await bus.js.update_stream(info)
    with pytest.raises(HeadraceError, match="store_bytes") as refused:
        await admit(bus, make_work())
    assert refused.value.info.code is ErrorCode.SATURATED
    assert queueing.service.pools["p"].bounds.requests == 0


async def test_too_long_for_any_executor_is_refused(bus: Bus, queueing: Queueing) -> None:
    with pytest.raises(HeadraceError, match="hold 4096") as refused:
        await admit(bus, make_work(max_tokens=5000))
    assert refused.value.info.code is ErrorCode.CONTEXT_LENGTH_EXCEEDED


async def test_a_passed_deadline_is_refused(bus: Bus, queueing: Queueing, clock: FakeClock) -> None:
    with pytest.raises(HeadraceError) as refused:
        await admit(bus, make_work(deadline_ms=int(clock.now_ms()) - 10))
    assert refused.value.info.code is ErrorCode.DEADLINE_EXCEEDED


async def test_expired_while_waiting_is_never_leased(
    bus: Bus, queueing: Queueing, clock: FakeClock, egress: ScriptedEgress
) -> None:
    work = make_work(deadline_ms=int(clock.now_ms()) + 2_000)
    await admit(bus, work)
    clock.seconds += 2.5
    executor = ScriptedExecutor(bus)
    await executor.start()
    other = make_work(deadline_ms=int(clock.now_ms()) + 60_000)
    await admit(bus, other)
    assert (await executor.next_lease()).work.request_id == other.request_id
    await egress.end(work, FinishReason.TIMEOUT)
    await until(lambda: queueing.service.counters()["expired"] == 1)


async def test_a_notice_takes_a_waiting_request_out(
    bus: Bus, queueing: Queueing, egress: ScriptedEgress
) -> None:
    work = make_work()
    await admit(bus, work)
    notice = CancelNotice(request_id=work.request_id, reason=FinishReason.CANCELLED)
    await bus.publish(subjects.cancel(work.request_id), notice)
    await egress.end(work, FinishReason.CANCELLED)
    await until(lambda: queueing.service.counters()["cancelled"] == 1)
    executor = ScriptedExecutor(bus)
    await executor.start()
    await asyncio.sleep(0.1)
    assert executor.leases.empty()


async def test_a_notice_before_its_request_refuses_it(bus: Bus, queueing: Queueing) -> None:
    work = make_work()
    notice = CancelNotice(request_id=work.request_id, reason=FinishReason.ERROR, orphan=True)
    await bus.publish(subjects.cancel(work.request_id), notice)
    with pytest.raises(HeadraceError, match="closed before admission"):
        await admit(bus, work)
    assert queueing.service.counters()["accepted"] == 0
    assert await stored(bus) == 0


async def test_the_same_request_is_taken_once_and_answered_twice(
    bus: Bus, queueing: Queueing, egress: ScriptedEgress
) -> None:
    work = make_work()
    replies = await asyncio.gather(*(admit(bus, work) for _ in range(3)))
    assert await admit(bus, work) == replies[0] == replies[1] == replies[2]
    assert await stored(bus) == 1
    counters = queueing.service.counters()
    assert (counters["accepted"], counters["queued"]) == (1, 1)
    assert queueing.service.pools["p"].bounds.requests == 1


async def test_positions_are_told_every_five_seconds(
    bus: Bus, queueing: Queueing, clock: FakeClock, egress: ScriptedEgress
) -> None:
    works = [make_work() for _ in range(3)]
    for work in works:
        await admit(bus, work)
    assert egress.positions.empty()
    clock.seconds += 2.5
    await egress.beat()
    clock.seconds += 2.5
    await egress.beat()
    told = await asyncio.wait_for(egress.positions.get(), 20)
    assert told == {work.request_id: place for place, work in enumerate(works)}


async def test_a_changed_store_size_is_taken_over(bus: Bus, queueing: Queueing) -> None:
    await queueing.kill()
    plan = topology().model_dump(mode="json")
    plan["bus"]["store_bytes"] = 1 << 25
    queueing.plan = Topology.model_validate(plan)
    await queueing.start()
    info = await bus.js.stream_info(subjects.QUEUE_STREAM)
    assert info.config.max_bytes == 1 << 25


async def test_the_answer_is_small_for_a_long_prompt(
    bus: Bus, queueing: Queueing, egress: ScriptedEgress
) -> None:
    work = make_work(prompt=4000)
    answer = await bus.request_bytes(subjects.admit("p"), work, 2.0)
    assert len(answer) < 1000
    assert AdmitReply.model_validate_json(answer).prompt_tokens == 4000
