"""Queueing itself is lost and started again; accepted requests are not lost."""

import asyncio
import json

from contracts import subjects
from contracts.client import FinishReason
from contracts.sessions import Progress
from contracts.topology import Topology
from stages.runtime.bus import Bus
from tests.queueing.conftest import Queueing
from tests.queueing.support import (
    ScriptedEgress,
    ScriptedExecutor,
    admit,
    make_work,
    receipts,
    running,
    until,
)
from tests.support.stages import topology

ERROR = FinishReason.ERROR


async def test_restart_adopts_what_runs_and_leases_the_rest(
    bus: Bus, queueing: Queueing, executor: ScriptedExecutor, egress: ScriptedEgress
) -> None:
    executor.slots = 1
    await executor.speak()
    runs = await running(bus, executor, queueing)
    waits, gone = make_work(), make_work()
    await admit(bus, waits)
    await admit(bus, gone)
    for work, is_open in ((runs, True), (waits, True)):
        egress.progress[work.request_id] = Progress(
            request_id=work.request_id, open=is_open, attempt=0, ids=[]
        )
    await queueing.kill()
    await queueing.start()
    assert queueing.service.counters()["accepted"] == 3
    await egress.beat()
    await executor.speak()
    await until(lambda: queueing.service.counters()["running"] == 1)
    await until(lambda: queueing.service.counters()["failed"] == 1)  # nobody knows `gone`
    assert [receipt.request_id for receipt in await receipts(bus)] == [gone.request_id]
    await egress.end(runs, FinishReason.STOP)
    executor.slots = 1
    await executor.finish(runs.request_id)
    lease = await executor.next_lease()
    assert lease.work.request_id == waits.request_id
    assert (lease.attempt, lease.epoch) == (1, 2)  # it never ran: every executor has told
    counters = queueing.service.counters()
    assert (counters["finished"], counters["failed"]) == (1, 1)


async def test_restart_asks_about_a_long_backlog_in_small_questions(
    bus: Bus, queueing: Queueing, egress: ScriptedEgress
) -> None:
    works = [make_work() for _ in range(100)]
    for work in works:
        await admit(bus, work)
        egress.progress[work.request_id] = Progress(
            request_id=work.request_id, open=True, attempt=0, ids=[]
        )
    await queueing.kill()
    await queueing.start()
    await egress.beat()
    pool = queueing.service.pools["p"]
    await until(lambda: len(pool.order) == 100)
    assert max(egress.questions) <= 64


async def test_requests_of_a_pool_that_left_the_topology_end(
    bus: Bus, queueing: Queueing, executor: ScriptedExecutor, egress: ScriptedEgress
) -> None:
    executor.slots = 1
    await executor.speak()
    runs = await running(bus, executor, queueing)
    second, third = make_work(deadline_ms=2**52), make_work(deadline_ms=2**52)
    for work in (second, third):
        await admit(bus, work)
    for work in (runs, second, third):
        egress.progress[work.request_id] = Progress(
            request_id=work.request_id, open=True, attempt=0, ids=[]
        )
    await queueing.kill()
    plan = topology().model_dump(mode="json")
    del plan["pools"]["p"]
    plan["routes"][0]["pool"] = "q"
    queueing.plan = Topology.model_validate(plan)
    await queueing.start()
    await egress.beat()
    await until(lambda: queueing.service.counters()["running"] == 1)
    await egress.end(runs, FinishReason.STOP)
    await executor.finish(runs.request_id)
    assert (await executor.next_lease()).work.request_id == second.request_id  # while it lives
    executor.silent = True
    del executor.running[second.request_id]
    await queueing.pass_time(8, egress)
    for _ in range(2):
        failed = await asyncio.wait_for(egress.failed.get(), 20)
        assert "not in the topology" in failed.error.message
        await egress.end(second if failed.request_id == second.request_id else third, ERROR)
    await until(lambda: queueing.service.counters()["accepted"] == 0)  # given up, it is empty
    async with asyncio.timeout(20):
        while (await bus.js.stream_info(subjects.QUEUE_STREAM)).state.messages:
            await asyncio.sleep(0.01)
    await until(lambda: queueing.service.owners.wanted() == {"q"})


async def test_restart_drops_what_is_unreadable(bus: Bus, queueing: Queueing) -> None:
    await queueing.kill()
    await bus.js.publish(subjects.stored("p"), json.dumps({"nonsense": 1}).encode())
    await queueing.start()
    assert queueing.service.counters()["accepted"] == 0
    async with asyncio.timeout(20):
        while (await bus.js.stream_info(subjects.QUEUE_STREAM)).state.messages:
            await asyncio.sleep(0.01)
