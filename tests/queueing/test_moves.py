"""Requests that go from pool to pool, once, whatever is lost in between."""

import asyncio
from typing import Any

import msgspec
import nats.js.errors
import pytest
from nats.aio.msg import Msg

from contracts import subjects
from contracts.client import FinishReason
from contracts.errors import ErrorCode, HeadraceError
from contracts.frames import Credit
from contracts.internal import (
    AdmitReply,
    CancelNotice,
    Inventory,
    InventoryCall,
    MoveCall,
    MoveReply,
    Work,
)
from contracts.sessions import Progress
from contracts.topology import Topology
from stages.queueing import moves
from stages.runtime.bus import Bus
from tests.queueing.conftest import Queueing
from tests.queueing.support import (
    ScriptedEgress,
    ScriptedExecutor,
    admit,
    make_work,
    until,
)
from tests.support.nats import flushed
from tests.support.stages import topology

PLAN = topology(
    pools={
        "p": {"model": "m", "kv_tokens": 4096},
        "q": {"model": "big", "kv_tokens": 8192},
        "r": {"model": "m", "kv_tokens": 4096, "queue": {"requests": 2}},
    }
)
MORE = PLAN.pools | {"z": PLAN.pools["r"]}  # z is served by the test, or by nobody


class ExecutorOfR(ScriptedExecutor):
    """In pool r."""

    def credit(self) -> Credit:
        return msgspec.structs.replace(super().credit(), pool="r")

    async def _on_inventory(self, call: InventoryCall, msg: Msg) -> Inventory:
        return (await super()._on_inventory(call, msg)).model_copy(update={"pool": "r"})


@pytest.fixture
def plan() -> Topology:
    """Pools p and r serve the same model, q another one; nobody executes yet."""
    return PLAN


@pytest.fixture
async def home(bus: Bus, queueing: Queueing) -> ScriptedEgress:
    """The egress of all requests; it knows every session that was told to it."""
    made = ScriptedEgress(bus)
    await made.start()
    return made


async def waiting(bus: Bus, egress: ScriptedEgress, **changes: Any) -> Work:
    work = make_work(**changes)
    await admit(bus, work)
    progress = Progress(request_id=work.request_id, open=True, attempt=0, ids=[])
    egress.progress[work.request_id] = progress
    return work


async def move(bus: Bus, source: str, to: str, ids: list[str] | None = None) -> MoveReply:
    call = MoveCall(to=to, request_ids=ids)
    return await bus.request(subjects.move(source), call, MoveReply, 20)


async def stored(bus: Bus) -> list[Work]:
    """What is in HR_QUEUE."""
    stream = await bus.js.stream_info(subjects.QUEUE_STREAM)
    found = []
    for seq in range(max(stream.state.first_seq, 1), stream.state.last_seq + 1):
        try:
            message = await bus.js.get_msg(subjects.QUEUE_STREAM, seq)
        except nats.js.errors.NotFoundError:  # removed
            continue
        found.append(Work.model_validate_json(message.data or b""))
    return found


async def stored_is(bus: Bus, *copies: tuple[str, int]) -> None:
    """Wait until exactly these (pool, hop) are stored: removal follows the answer."""
    async with asyncio.timeout(20):
        while (found := [(work.pool, work.hop) for work in await stored(bus)]) != list(copies):
            await asyncio.sleep(0.05)
    assert found == list(copies)


async def test_what_waits_goes_to_the_other_pool_and_runs_there(
    bus: Bus, queueing: Queueing, home: ScriptedEgress
) -> None:
    works = [await waiting(bus, home) for _ in range(2)]
    reply = await move(bus, "p", "r")
    assert (sorted(reply.moved), reply.stayed) == (sorted(w.request_id for w in works), {})
    await stored_is(bus, ("r", 1), ("r", 1))
    counters = queueing.service.counters()
    assert (counters["accepted"], counters["queued"]) == (2, 2)
    terms = await asyncio.wait_for(home.terms.get(), 20)
    assert terms.work.decision().pool == "r"
    assert terms.work.decision().reason == "moved by an operator, from pool p"
    executor = ExecutorOfR(bus)
    await executor.start()
    for _ in works:
        lease = await executor.next_lease()
        assert (lease.work.pool, lease.work.hop, lease.attempt) == ("r", 1, 1)
        assert lease.work.prompt_ids == works[0].prompt_ids
        await home.end(lease.work, FinishReason.STOP)
    await until(lambda: queueing.service.counters()["finished"] == 2)
    await stored_is(bus)
    assert queueing.service.counters()["accepted"] == 2


async def test_there_and_back_again_with_a_crash_before_the_old_copy_is_removed_runs_once(
    bus: Bus, queueing: Queueing, home: ScriptedEgress, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = await waiting(bus, home)
    assert (await move(bus, "p", "r")).moved == [work.request_id]
    await stored_is(bus, ("r", 1))
    monkeypatch.setattr(queueing.service.board, "remove", lambda pool, seq: None)
    assert (await move(bus, "r", "p")).moved == [work.request_id]
    await stored_is(bus, ("r", 1), ("p", 2))
    await queueing.kill()
    await queueing.start()
    await home.beat()
    in_p, in_r = ScriptedExecutor(bus), ExecutorOfR(bus, "y")
    await in_r.start()
    await in_p.start()
    lease = await in_p.next_lease()
    assert (lease.work.pool, lease.work.hop) == ("p", 2)
    await stored_is(bus, ("p", 2))
    await queueing.pass_time(1, in_p, in_r, home)
    assert in_r.leases.empty()
    assert in_p.leases.empty()
    await home.end(lease.work, FinishReason.STOP)
    await until(lambda: queueing.service.counters()["finished"] == 1)
    await stored_is(bus)
    counters = queueing.service.counters()
    assert (counters["accepted"], counters["queued"], counters["running"]) == (1, 0, 0)


async def test_a_lower_hop_that_was_left_behind_goes_on_as_the_new_copy(
    bus: Bus, queueing: Queueing, home: ScriptedEgress
) -> None:
    """Pool p never learned that r has it (its owner died); now it comes back from r."""
    work = await waiting(bus, home)
    back = work.model_copy(update={"hop": 2, "reason": "moved"})
    reply = await bus.request(subjects.moved("p"), back, AdmitReply, 20)
    assert reply.work.hop == 2
    await stored_is(bus, ("p", 2))
    assert queueing.service.counters()["queued"] == 1
    executor = ScriptedExecutor(bus)
    await executor.start()
    assert (await executor.next_lease()).work.hop == 2
    assert executor.leases.empty()


async def test_asked_again_for_the_same_copy_also_after_a_restart(
    bus: Bus, queueing: Queueing, home: ScriptedEgress
) -> None:
    work = make_work(pool="r", hop=1)
    for _ in range(2):
        reply = await bus.request(subjects.moved("r"), work, AdmitReply, 20)
        assert (reply.work.pool, reply.work.hop) == ("r", 1)
    assert (await asyncio.wait_for(home.terms.get(), 20)).work.hop == 1
    await queueing.kill()
    await queueing.start()
    await bus.request(subjects.moved("r"), work, AdmitReply, 20)
    await stored_is(bus, ("r", 1))
    assert queueing.service.counters()["accepted"] == 1
    # The owner before may have died before it could tell.
    assert (await asyncio.wait_for(home.terms.get(), 20)).work.hop == 1


async def test_the_other_pools_bound_is_kept(
    bus: Bus, queueing: Queueing, home: ScriptedEgress
) -> None:
    works = [await waiting(bus, home) for _ in range(3)]
    reply = await move(bus, "p", "r", [work.request_id for work in works])
    assert len(reply.moved) == 2
    [(stays, why)] = reply.stayed.items()
    assert "the queue of pool 'r' is full" in why
    await home.beat()
    await until(lambda: len(queueing.service.pools["p"].order) == 1)
    assert queueing.service.counters()["accepted"] == 3
    executor = ScriptedExecutor(bus)
    await executor.start()
    lease = await executor.next_lease()
    assert (lease.work.request_id, lease.work.hop, lease.work.pool) == (stays, 0, "p")


async def test_what_cannot_move_says_why(
    bus: Bus, queueing: Queueing, home: ScriptedEgress
) -> None:
    for to, code in (
        ("nowhere", ErrorCode.NOT_FOUND),
        ("p", ErrorCode.INVALID_REQUEST),
        ("q", ErrorCode.INVALID_REQUEST),
    ):
        with pytest.raises(HeadraceError) as refused:
            await move(bus, "p", to)
        assert (refused.value.info.code, refused.value.info.field) == (code, "to")
    executor = ScriptedExecutor(bus)
    await executor.start()
    runs = await waiting(bus, home)
    await until(lambda: queueing.service.counters()["running"] == 1)
    reply = await move(bus, "p", "r", [runs.request_id, "unknown"])
    assert reply.moved == []
    assert reply.stayed[runs.request_id] == "it runs already"
    assert "does not wait here" in reply.stayed["unknown"]
    assert (await move(bus, "p", "r")) == MoveReply(moved=[], stayed={})


async def test_a_request_whose_session_has_closed_is_not_taken(
    bus: Bus, queueing: Queueing
) -> None:
    work = make_work(pool="r", hop=1)
    notice = CancelNotice(request_id=work.request_id, reason=FinishReason.CANCELLED)
    await bus.publish(subjects.cancel(work.request_id), notice)
    await flushed(bus)
    with pytest.raises(HeadraceError, match="session is closed"):
        await bus.request(subjects.moved("r"), work, AdmitReply, 20)
    await stored_is(bus)


async def test_one_that_ran_before_goes_on_from_what_was_delivered(
    bus: Bus, queueing: Queueing, home: ScriptedEgress
) -> None:
    work = make_work(pool="r", hop=1, attempt=3)
    home.progress[work.request_id] = Progress(
        request_id=work.request_id, open=True, attempt=2, ids=[7, 8]
    )
    await home.beat()
    await bus.request(subjects.moved("r"), work, AdmitReply, 20)
    executor = ExecutorOfR(bus)
    await executor.start()
    lease = await executor.next_lease()
    assert (lease.attempt, lease.resume_ids) == (4, [7, 8])


async def test_an_answer_that_was_missed_is_asked_for_until_it_comes(
    bus: Bus, queueing: Queueing, home: ScriptedEgress, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Put back after the first silence, it would run in both pools."""
    monkeypatch.setattr(moves, "TRY_S", 0.2)
    monkeypatch.setattr(moves, "REPLY_S", 0.5)
    monkeypatch.setattr(queueing.service.moves, "_sections", lambda: MORE)
    asked: list[Work] = []

    async def other(work: Work, _: Msg) -> AdmitReply | None:
        asked.append(work)
        return None if speechless else AdmitReply(work=work, prompt_tokens=1, position=0)

    speechless = True
    await bus.serve(subjects.moved("z"), Work, other)
    await flushed(bus)
    work = await waiting(bus, home)
    reply = await move(bus, "p", "z")
    assert "does not answer" in reply.stayed[work.request_id]
    executor = ScriptedExecutor(bus)
    await executor.start()
    await queueing.pass_time(1, executor, home)
    assert executor.leases.empty()
    speechless = False
    await stored_is(bus)
    assert {(each.request_id, each.hop) for each in asked} == {(work.request_id, 1)}
    assert queueing.service.counters()["accepted"] == 0  # the other pool counts it


async def test_a_pool_that_nobody_serves_gets_nothing(
    bus: Bus, queueing: Queueing, home: ScriptedEgress, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(moves, "UNSERVED_S", 0.2)
    monkeypatch.setattr(queueing.service.moves, "_sections", lambda: MORE)
    work = await waiting(bus, home)
    reply = await move(bus, "p", "z")
    assert "nobody serves" in reply.stayed[work.request_id]
    await home.beat()
    await until(lambda: len(queueing.service.pools["p"].order) == 1)
    await stored_is(bus, ("p", 0))
