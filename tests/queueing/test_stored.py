"""What the stream holds and what queueing knows are brought together, whichever word was lost."""

import asyncio

import nats.errors
import pytest
from nats.js.api import PubAck

from contracts import subjects
from contracts.client import FinishReason
from contracts.errors import HeadraceError
from contracts.internal import Work
from stages.queueing.deliveries import epoch_of
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


async def store(bus: Bus, work: Work, pool: str = "p") -> int:
    """As an owner does whose next step is missing."""
    ack = await bus.js.publish(
        subjects.stored(pool),
        work.model_dump_json().encode(),
        headers={"Nats-Msg-Id": f"{work.request_id}:{work.hop}"},
    )
    return int(ack.seq)


async def stored(bus: Bus) -> int:
    return int((await bus.js.stream_info(subjects.QUEUE_STREAM)).state.messages)


async def nothing_stored(bus: Bus) -> None:
    async with asyncio.timeout(30):
        while await stored(bus):
            await asyncio.sleep(0.02)


async def test_a_stored_request_that_nobody_announced_is_run(
    bus: Bus, queueing: Queueing, executor: ScriptedExecutor, egress: ScriptedEgress
) -> None:
    work = make_work()
    egress.knows(work)
    await store(bus, work)
    lease = await executor.next_lease()
    assert lease.work.request_id == work.request_id
    assert queueing.service.counters()["accepted"] == 1
    await egress.end(work, FinishReason.STOP)
    await nothing_stored(bus)


async def test_a_retried_admission_finds_the_request_that_turned_up(
    bus: Bus, queueing: Queueing, executor: ScriptedExecutor, egress: ScriptedEgress
) -> None:
    work = make_work()
    egress.knows(work)
    await store(bus, work)
    reply = await admit(bus, work)
    assert reply.work.request_id == work.request_id
    assert (await executor.next_lease()).work.request_id == work.request_id
    assert await stored(bus) == 1
    assert queueing.service.counters()["accepted"] == 1


async def test_a_store_whose_answers_are_lost_is_tried_until_it_is_clear(
    bus: Bus,
    queueing: Queueing,
    executor: ScriptedExecutor,
    egress: ScriptedEgress,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    publish = queueing.bus.js.publish
    failures = iter([nats.errors.TimeoutError(), nats.errors.TimeoutError()])

    async def deaf(subject: str, *rest: object, **more: object) -> PubAck:
        ack = await publish(subject, *rest, **more)  # type: ignore[arg-type]
        if subject == subjects.stored("p") and (error := next(failures, None)) is not None:
            raise error
        return ack

    monkeypatch.setattr(queueing.bus.js, "publish", deaf)
    work = make_work()
    await admit(bus, work)
    assert next(failures, None) is None
    assert await stored(bus) == 1
    assert (await executor.next_lease()).work.request_id == work.request_id
    assert queueing.service.counters()["accepted"] == 1


async def test_what_was_refused_as_unclear_is_not_run_when_it_turns_up(
    bus: Bus,
    queueing: Queueing,
    executor: ScriptedExecutor,
    egress: ScriptedEgress,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def deaf(*_: object, **__: object) -> PubAck:
        raise nats.errors.TimeoutError

    work = make_work(deadline_ms=int(queueing.service._clocks.now_ms()) + 1)
    egress.knows(work)
    with monkeypatch.context() as patch:
        patch.setattr(queueing.bus.js, "publish", deaf)
        asking = asyncio.ensure_future(admit(bus, work))
        await until(lambda: queueing.service.admissions.under_way(work.request_id))
        queueing._clock.seconds += 1
        with pytest.raises(HeadraceError, match="could not be stored"):
            await asking
    await store(bus, work)  # it was only slow
    await nothing_stored(bus)
    assert executor.leases.empty()
    assert await receipts(bus) == []
    assert queueing.service.counters()["accepted"] == 0


async def test_a_request_whose_copy_was_removed_is_not_accepted_again(
    bus: Bus, queueing: Queueing, executor: ScriptedExecutor, egress: ScriptedEgress
) -> None:
    work = await running(bus, executor, queueing)
    await egress.end(work, FinishReason.STOP)
    await nothing_stored(bus)
    await executor.finish(work.request_id)
    with pytest.raises(HeadraceError, match="has ended"):
        await admit(bus, work)
    assert queueing.service.counters()["accepted"] == 1


async def test_a_consumer_that_is_gone_is_replaced(
    bus: Bus, queueing: Queueing, executor: ScriptedExecutor, egress: ScriptedEgress
) -> None:
    work = await running(bus, executor, queueing)
    egress.knows(work)
    name = next(
        info.name
        for info in await bus.js.consumers_info(subjects.QUEUE_STREAM)
        if info.config.filter_subject == subjects.stored("p")
    )
    assert epoch_of(name) == 1
    await bus.js.delete_consumer(subjects.QUEUE_STREAM, name)
    await egress.end(work, FinishReason.STOP)
    await nothing_stored(bus)
    counters = queueing.service.counters()
    assert (counters["accepted"], counters["finished"]) == (1, 1)


async def test_only_the_highest_hop_of_a_request_is_restored(
    bus: Bus, queueing: Queueing, executor: ScriptedExecutor, egress: ScriptedEgress
) -> None:
    await queueing.kill()
    moved, back = make_work(pool="q", hop=1), make_work(hop=2)
    egress.knows(moved, back)
    await store(bus, moved.model_copy(update={"pool": "p", "hop": 0}))
    await store(bus, back.model_copy(update={"hop": 0}))
    await store(bus, moved, "q")
    await store(bus, back)
    await queueing.start()
    assert queueing.service.counters()["accepted"] == 2
    pools = queueing.service.pools
    assert pools["p"].ledger.get(moved.request_id) is None
    assert pools["q"].ledger.get(moved.request_id) is not None
    entry = pools["p"].ledger.get(back.request_id)
    assert entry is not None
    assert entry.work.hop == 2
    async with asyncio.timeout(30):
        while await stored(bus) > 2:
            await asyncio.sleep(0.02)
    await egress.beat()
    assert (await executor.next_lease()).work.request_id == back.request_id


async def test_a_long_backlog_is_read_in_batches(bus: Bus, queueing: Queueing) -> None:
    await queueing.kill()
    works = [make_work() for _ in range(600)]
    await asyncio.gather(*(store(bus, work) for work in works))
    await queueing.start()
    assert queueing.service.counters()["accepted"] == 600
    assert {e.request_id for e in queueing.service.pools["p"].ledger} == {
        work.request_id for work in works
    }


def test_epochs_are_read_from_names_of_consumers() -> None:
    assert epoch_of("small-4-7-12-1") == 12
    assert epoch_of("p-3-1") == 3
    assert epoch_of("somebody") == 0
    assert epoch_of("a-b-c") == 0
