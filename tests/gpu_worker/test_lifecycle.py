"""An executor among others: owners that change, egresses that take over, drains, prices."""

import asyncio
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from nats.aio.msg import Msg

from contracts import subjects
from contracts.client import FinishReason
from contracts.errors import ErrorCode, HeadraceError
from contracts.frames import FRAME_DECODER, TokenItem
from contracts.internal import CancelNotice, Inventory, InventoryCall, Release
from contracts.sessions import RepairCall, RepairReply
from contracts.usage import AttemptEvent, AttemptReport, IntervalEvent
from gpu_worker import service as service_module
from gpu_worker.service import ExecutorService
from stages.runtime.bus import Bus
from tests.gpu_worker.executor import ME, Watch, endless, give, topology
from tests.gpu_worker.helpers import usage_events
from tests.support.nats import flushed


async def repair(bus: Bus, request_id: str, offset: int, egress: str | None = None) -> RepairReply:
    """Ask the executor for tokens again."""
    call = RepairCall(request_id=request_id, offset=offset, egress=egress)
    return await bus.request(subjects.repair(ME), call, RepairReply, 10.0)


async def attempts(bus: Bus) -> list[AttemptEvent]:
    """All that are stored."""
    return [event for event in await usage_events(bus) if isinstance(event, AttemptEvent)]


def flat(items: list[TokenItem]) -> list[int]:
    """Their tokens."""
    return [token for item in items for token in item.ids]


@pytest.mark.usefixtures("slow_steps")
async def test_an_owner_that_was_replaced_can_neither_lease_nor_stop(
    bus: Bus, watch: Watch, service: ExecutorService
) -> None:
    current = endless("a").model_copy(update={"epoch": 5})
    assert (await give(bus, current)).accepted
    stale = await give(bus, endless("b").model_copy(update={"epoch": 4}))
    assert not stale.accepted
    assert "epoch 4" in stale.reason
    assert "epoch 5" in stale.reason
    notice = CancelNotice(request_id="a", reason=FinishReason.ERROR, attempt=1, pool="p", epoch=4)
    await bus.publish(subjects.cancel("a"), notice)
    seen = len(watch.items)
    await watch.until(lambda: len(watch.items) > seen + 3)
    await bus.publish(subjects.cancel("a"), notice.model_copy(update={"epoch": 5}))
    await watch.until(lambda: watch.credits[-1].free_slots == 2)
    assert (await give(bus, endless("c"))).accepted, "epoch 0 is unfenced"


async def test_a_new_owner_is_known_from_its_inventory_and_other_pools_stay_silent(
    bus: Bus, service: ExecutorService
) -> None:
    call = InventoryCall(pool="small", epoch=9)
    found = await bus.request(subjects.INVENTORY, call, Inventory, 10.0)
    assert found.executor == ME
    stale = endless("a", pool="small").model_copy(update={"epoch": 8})
    assert not (await give(bus, stale)).accepted
    with pytest.raises(HeadraceError) as silence:
        await bus.request(subjects.INVENTORY, InventoryCall(pool="large"), Inventory, 0.3)
    assert silence.value.info.code is ErrorCode.DEADLINE_EXCEEDED


@pytest.mark.usefixtures("slow_steps")
async def test_an_egress_takes_a_stream_over_without_a_lost_or_repeated_token(
    bus: Bus, watch: Watch, service: ExecutorService
) -> None:
    taken: list[TokenItem] = []

    def collect(msg: Msg) -> None:
        taken.extend(FRAME_DECODER.decode(msg.data).items)

    await bus.listen(subjects.tokens("egress-1-b"), collect)
    await flushed(bus)
    await give(bus, endless("a"))
    await watch.until(lambda: len(watch.items) > 5)
    have = flat(watch.items)
    reply = await repair(bus, "a", len(have), egress="egress-1-b")
    assert (reply.attempt, reply.finish, reply.started_ms) == (1, None, watch.items[0].started_ms)
    await watch.until(lambda: bool(taken) and taken[-1].finish is not None)
    # everything up to the answer is in it, everything after came here, in order
    whole = have + reply.ids + flat(taken)
    assert taken[0].offset == len(have) + len(reply.ids)
    assert all(one.offset + len(one.ids) == two.offset for one, two in pairwise(taken))
    assert len(whole) == 200
    again = await repair(bus, "a", 0)
    assert (again.ids, again.finish) == (whole, "length"), "kept after the end"
    with pytest.raises(HeadraceError) as missing:
        await repair(bus, "b", 0)
    assert missing.value.info.code is ErrorCode.NOT_FOUND


async def test_only_the_first_item_of_an_attempt_says_whose_bits_it_has(
    bus: Bus, watch: Watch, service: ExecutorService
) -> None:
    await give(bus, endless("a"))
    await watch.until(lambda: watch.finish("a") == "length")
    fingerprint = service.detail()["fingerprint"]
    assert fingerprint
    assert [item.fingerprint for item in watch.items] == [fingerprint] + [""] * 199
    await service.drain()
    for event in await usage_events(bus):
        assert (event.fingerprint, event.device, event.zone) == (fingerprint, "cpu", "default")
        assert f"{event.fraction:g}" == service.detail()["fraction"]


@pytest.mark.usefixtures("slow_steps")
async def test_running_attempts_are_reported_as_they_would_be_closed(
    bus: Bus, watch: Watch, service: ExecutorService
) -> None:
    reports: list[AttemptReport] = []
    heard = lambda msg: reports.append(AttemptReport.model_validate_json(msg.data))  # noqa: E731
    await bus.listen(subjects.attempts("small"), heard)
    await flushed(bus)
    lease = endless("a").model_copy(update={"epoch": 2, "attempt": 3})
    await give(bus, lease)
    await watch.until(lambda: watch.finish("a") == "length" and bool(reports))
    for report in reports:
        [event] = report.attempts
        assert (event.finish, event.key, event.epoch) == ("lost", "a:3:lost", 2)
        assert (report.executor, event.executor) == (ME, ME)
    last = reports[-1].attempts[0]
    [final] = await _until_stored(bus, 1)
    assert final.key == "a:3:final"
    assert 0 < last.computed_tokens <= final.computed_tokens
    assert 0 < last.accelerator_s <= final.accelerator_s
    assert last.started_ms == final.started_ms


@pytest.mark.usefixtures("slow_steps")
async def test_what_cannot_finish_on_drain_is_given_back_after_its_last_token(
    bus: Bus, watch: Watch, service: ExecutorService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service_module, "FINISH_S", 0.1)
    said: list[Any] = []
    sequence = {
        subjects.tokens("egress-0-a"): FRAME_DECODER.decode,
        subjects.release("small"): Release.model_validate_json,
    }

    def note(msg: Msg) -> None:
        if msg.subject in sequence:
            said.append(sequence[msg.subject](msg.data))

    await bus.listen("hr.>", note)  # one subscription: messages in the order they were sent
    await flushed(bus)
    await give(bus, endless("long"))
    await give(bus, endless("left"))
    await watch.until(lambda: len(watch.items) > 4)
    gone = CancelNotice(request_id="left", reason=FinishReason.CANCELLED)
    await bus.publish(subjects.cancel("left"), gone)
    await flushed(bus)
    await service.drain()
    await watch.until(lambda: any(isinstance(each, Release) for each in said))
    release = said.pop()
    assert release == Release(executor=ME, pool="small", attempts=[("long", 1)])
    items = [item for frame in said for item in frame.items if item.request_id == "long"]
    by_request = {event.request_id: event for event in await attempts(bus)}
    assert by_request["long"].finish == "moved"
    assert by_request["left"].finish == "cancelled"
    assert sum(len(item.ids) for item in items) == by_request["long"].completion_tokens
    assert all(item.finish is None for item in items), "the session goes on elsewhere"


@pytest.mark.usefixtures("slow_steps")
async def test_a_price_changes_live_and_the_bill_still_adds_up(
    bus: Bus, watch: Watch, service: ExecutorService, tmp_path: Path
) -> None:
    await give(bus, endless("a"))
    await watch.until(lambda: len(watch.items) > 20)
    dearer = topology(tmp_path / "tiny")
    pool = dearer.pools["small"]
    price = pool.price.model_copy(update={"accelerator_hour": 7.2})
    pools = {"small": pool.model_copy(update={"price": price, "zone": "b", "fraction": 0.25})}
    await service.reconfigure(dearer.model_copy(update={"pools": pools}), 2)
    await watch.until(lambda: watch.finish("a") == "length")
    await service.drain()
    events = await usage_events(bus)
    intervals = [event for event in events if isinstance(event, IntervalEvent)]
    assert all(one.end_ms == two.start_ms for one, two in pairwise(intervals))
    prices = [event.price.accelerator_hour for event in intervals]
    assert prices == sorted(prices)
    assert set(prices) == {3.6, 7.2}
    assert {(event.zone, event.fraction, event.generation) for event in intervals[-1:]} == {
        ("b", 0.25, 2)
    }
    [attempt] = [event for event in events if isinstance(event, AttemptEvent)]
    billed = sum(event.busy_ms / 1e3 * event.price.accelerator_hour for event in intervals)
    assert attempt.accelerator_s * attempt.price.accelerator_hour == pytest.approx(billed)
    assert 3.6 < attempt.price.accelerator_hour < 7.2


async def test_a_pool_that_goes_changes_nothing_of_its_executor(
    service: ExecutorService, tmp_path: Path
) -> None:
    before = service.detail()
    gone = topology(tmp_path / "tiny").model_copy(update={"pools": {}})
    await service.reconfigure(gone, 2)
    after = service.detail()
    moving = {"interval_end_ms"}
    assert {k: v for k, v in after.items() if k not in moving} == {
        k: v for k, v in before.items() if k not in moving
    }


async def _until_stored(bus: Bus, count: int) -> list[AttemptEvent]:
    async with asyncio.timeout(30):
        while len(found := await attempts(bus)) < count:
            await asyncio.sleep(0.02)
    return found
