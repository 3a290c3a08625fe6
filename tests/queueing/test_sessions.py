"""Sessions change their egress, executors give requests back; the requests go on."""

import asyncio
import json

import pytest

from contracts import subjects
from contracts.errors import ErrorCode, HeadraceError
from contracts.internal import Release, Work
from contracts.sessions import Progress, TakeReply, TakeSession
from stages.queueing.service import QueueingService
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


async def take(bus: Bus, work: Work, egress: str, tenant: str = "acme") -> TakeReply:
    call = TakeSession(request_id=work.request_id, tenant=tenant, egress=egress)
    return await bus.request(subjects.take("p"), call, TakeReply, 5.0)


def egress_of(service: QueueingService, work: Work) -> str:
    entry = service.pools["p"].ledger.get(work.request_id)
    assert entry is not None
    return entry.work.egress


async def second(bus: Bus) -> ScriptedEgress:
    made = ScriptedEgress(bus, "e2")
    await made.start()
    return made


async def test_a_session_is_taken_over_by_its_tenant_only(
    bus: Bus, queueing: Queueing, executor: ScriptedExecutor, egress: ScriptedEgress
) -> None:
    work = await running(bus, executor, queueing)
    reply = await take(bus, work, "e2")
    assert (reply.executor, reply.attempt, reply.terms.work.egress) == ("x", 1, "e2")
    assert reply.terms.prompt_tokens == len(work.prompt_ids)
    messages = []
    for name, tenant in ((work.request_id, "other"), ("no-such-request", "acme")):
        with pytest.raises(HeadraceError) as refused:
            await take(bus, work.model_copy(update={"request_id": name}), "e3", tenant)
        assert refused.value.info.code is ErrorCode.NOT_FOUND
        messages.append(refused.value.info.message.replace(name, "ID"))
    assert messages[0] == messages[1]
    assert egress_of(queueing.service, work) == "e2"


async def test_what_waits_is_leased_for_its_new_egress(
    bus: Bus, queueing: Queueing, egress: ScriptedEgress
) -> None:
    work = make_work(prompt=3)
    await admit(bus, work)
    assert (await take(bus, work, "e2")).executor is None
    executor = ScriptedExecutor(bus)
    await executor.start()
    lease = await executor.next_lease()
    assert (lease.work.egress, lease.work.prompt_ids) == ("e2", [0, 1, 2])


async def test_sessions_of_a_lost_egress_go_to_another(
    bus: Bus, queueing: Queueing, executor: ScriptedExecutor, egress: ScriptedEgress
) -> None:
    executor.slots = 1
    await executor.speak()
    runs = await running(bus, executor, queueing)
    waits = make_work(deadline_ms=2**52)
    await admit(bus, waits)
    other = await second(bus)
    other.adopts = False
    queueing.service.lose_egress("e")
    refused = await asyncio.wait_for(other.adopted.get(), 20)
    assert refused.terms.work.egress == "e2"
    other.adopts = True  # the next round tries again
    await until(lambda: egress_of(queueing.service, runs) == "e2")
    await until(lambda: egress_of(queueing.service, waits) == "e2")
    calls = [other.adopted.get_nowait() for _ in range(other.adopted.qsize())]
    told = {call.terms.work.request_id: (call.executor, call.attempt) for call in calls}
    assert told == {runs.request_id: ("x", 1), waits.request_id: (None, 0)}
    await queueing.pass_time(12, executor, other)
    assert await receipts(bus) == []
    await executor.finish(runs.request_id)
    assert (await executor.next_lease()).work.egress == "e2"


async def test_a_session_that_moved_under_an_owner_before_us_is_found(
    bus: Bus, queueing: Queueing, executor: ScriptedExecutor, egress: ScriptedEgress
) -> None:
    work = await running(bus, executor, queueing)
    other = await second(bus)
    other.progress[work.request_id] = Progress(
        request_id=work.request_id, open=True, attempt=1, ids=[4]
    )
    await take(bus, work, "e2")
    await queueing.kill()
    executor.running.clear()
    await queueing.start()  # the stored request names its first egress, which lives
    await egress.beat()
    await other.beat()
    await executor.speak()
    lease = await executor.next_lease()
    assert (lease.work.egress, lease.resume_ids) == ("e2", [4])
    assert other.adopted.empty()
    assert await receipts(bus) == []


async def test_what_a_draining_executor_gives_back_is_leased_elsewhere(
    bus: Bus, queueing: Queueing, executor: ScriptedExecutor, egress: ScriptedEgress
) -> None:
    work = await running(bus, executor, queueing)
    egress.progress[work.request_id] = Progress(
        request_id=work.request_id, open=True, attempt=1, ids=[7, 8]
    )
    executor.silent, executor.slots = True, 0
    await executor.speak()
    other = ScriptedExecutor(bus, "y")
    await other.start()
    release = Release(executor="x", pool="p", attempts=[(work.request_id, 1), ("other", 3)])
    await bus.publish(subjects.release("p"), release)
    lease = await other.next_lease()
    assert (lease.attempt, lease.resume_ids) == (2, [7, 8])
    await until(lambda: queueing.service.counters()["running"] == 1)
    entry = queueing.service.pools["p"].ledger.get(work.request_id)
    assert entry is not None
    assert (entry.executor, entry.tries) == ("y", 1)  # giving back is no failure


async def test_an_executor_whose_connection_broke_is_lost_at_once(
    bus: Bus, queueing: Queueing, egress: ScriptedEgress
) -> None:
    """The scripted executor's own connection is gone, so it does not answer any more."""
    own = await Bus.connect(queueing._address, "x")
    executor = ScriptedExecutor(own)
    await executor.start()
    work = await running(bus, executor, queueing)
    egress.progress[work.request_id] = Progress(
        request_id=work.request_id, open=True, attempt=1, ids=[7]
    )
    await own.client.close()
    other = ScriptedExecutor(bus, "y")
    await other.start()
    queueing._clock.seconds += 0.1
    await bus.publish(
        subjects.DISCONNECTED, json.dumps({"client": {"name": "x", "acc": "A"}}).encode()
    )

    async def time() -> None:
        while True:
            queueing._clock.seconds += 0.1
            await asyncio.sleep(0.05)

    ticking = asyncio.ensure_future(time())
    lease = await other.next_lease()
    ticking.cancel()
    assert (lease.attempt, lease.resume_ids) == (2, [7])
    async with asyncio.timeout(20):
        while not (await bus.js.stream_info(subjects.USAGE_STREAM)).state.messages:
            await asyncio.sleep(0.02)
    row = await bus.js.get_msg(subjects.USAGE_STREAM, 1)
    event = json.loads(row.data or b"")
    assert (event["request_id"], event["finish"], event["epoch"]) == (work.request_id, "lost", 1)
