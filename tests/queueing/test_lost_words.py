"""Last frames and receipts are lost on the bus; credit tells, no deadline has to pass."""

from contracts.client import FinishReason
from contracts.frames import Credit
from contracts.internal import Work
from contracts.sessions import Progress
from contracts.topology import PoolSection
from stages.queueing.ledger import Entry, State
from stages.queueing.pool import PoolQueue
from stages.runtime.bus import Bus
from tests.queueing.conftest import Queueing
from tests.queueing.support import (
    ScriptedEgress,
    ScriptedExecutor,
    make_entry,
    make_work,
    receipts,
    running,
    until,
)


def running_on_x(pool: PoolQueue, seq: int) -> Entry:
    """Taken by x, which answered with credit number `seq`."""
    entry = make_entry(make_work())
    pool.take(entry.tokens, 0.0)
    pool.accept(entry)
    pool.executors.hear(Credit("x", "p", 1, 2, 4096, []), 0.0)
    grant = pool.grant(0.0, 0.0)
    assert grant is not None
    pool.executors.hear(Credit("x", "p", seq, 1, 4032, [(entry.request_id, 1)]), 0.0)
    assert pool.taken(grant, 0.0, seq)
    return entry


def test_what_an_executor_does_not_name_for_two_seconds_is_lost() -> None:
    pool = PoolQueue("p", PoolSection(model="m", kv_tokens=4096))
    entry = running_on_x(pool, 5)
    assert pool.lose_missing(10.0) == []
    pool.executors.hear(Credit("x", "p", 6, 2, 4096, []), 10.0)
    assert pool.lose_missing(10.0) == []  # its receipt may be on the way
    assert pool.lose_missing(12.0) == []
    assert pool.lose_missing(12.1) == [entry]
    assert (entry.state, entry.executor) == (State.LOST, None)
    assert pool.counters()["queued"] == 1


def test_the_wait_starts_again_when_it_is_named_or_the_bus_was_away() -> None:
    pool = PoolQueue("p", PoolSection(model="m", kv_tokens=4096))
    entry = running_on_x(pool, 5)
    pool.executors.hear(Credit("x", "p", 6, 2, 4096, []), 10.0)
    assert pool.lose_missing(10.0) == []
    pool.executors.hear(Credit("x", "p", 7, 1, 4032, [(entry.request_id, 1)]), 11.0)
    assert pool.lose_missing(13.0) == []
    pool.executors.hear(Credit("x", "p", 8, 2, 4096, []), 13.0)
    assert pool.lose_missing(13.0) == []
    pool.pardon(20.0)
    assert pool.lose_missing(20.0) == []


def test_the_credit_that_answered_the_lease_proves_nothing() -> None:
    pool = PoolQueue("p", PoolSection(model="m", kv_tokens=4096))
    running_on_x(pool, 5)
    pool.executors.hear(Credit("x", "p", 5, 2, 4096, []), 10.0)  # the same word once more
    assert pool.lose_missing(10.0) == []
    assert pool.lose_missing(20.0) == []


async def ends_unheard(
    executor: ScriptedExecutor, egress: ScriptedEgress, work: Work, queueing: Queueing
) -> None:
    """The executor is done with it; its last frame, or the receipt after it, is lost."""
    await executor.finish(work.request_id)
    await queueing.pass_time(3, executor, egress)


async def test_a_lost_last_frame_is_made_good_by_a_new_attempt(
    bus: Bus,
    queueing: Queueing,
    executor: ScriptedExecutor,
    egress: ScriptedEgress,
) -> None:
    work = await running(bus, executor, queueing)
    egress.progress[work.request_id] = Progress(
        request_id=work.request_id, open=True, attempt=1, ids=[7, 8]
    )
    await ends_unheard(executor, egress, work, queueing)
    lease = await executor.next_lease()
    assert (lease.attempt, lease.resume_ids) == (2, [7, 8])
    await until(lambda: queueing.service.counters()["running"] == 1)


async def test_a_missed_receipt_is_counted_as_the_egress_ended_it(
    bus: Bus,
    queueing: Queueing,
    executor: ScriptedExecutor,
    egress: ScriptedEgress,
) -> None:
    work = await running(bus, executor, queueing)
    closed = Progress(request_id=work.request_id, open=False, attempt=1, ids=[])
    egress.progress[work.request_id] = closed  # its receipt is still being stored
    await ends_unheard(executor, egress, work, queueing)
    counters = queueing.service.counters()
    assert (counters["queued"], counters["finished"], counters["failed"]) == (1, 0, 0)
    stored = closed.model_copy(update={"finish_reason": FinishReason.LENGTH})
    egress.progress[work.request_id] = stored
    await until(lambda: queueing.service.counters()["finished"] == 1)
    assert executor.leases.empty()
    assert await receipts(bus) == []  # it wrote its own
