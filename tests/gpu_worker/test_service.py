"""The executor on a real bus: leases in; frames, attempts, credit and intervals out."""

import asyncio
import threading
from itertools import count
from pathlib import Path
from typing import cast

import pytest

from contracts import subjects
from contracts.client import FinishReason
from contracts.internal import CancelNotice, Inventory, InventoryCall
from contracts.usage import AttemptEvent, IntervalEvent
from gpu_worker import service as service_module
from gpu_worker.engine import Engine
from gpu_worker.output import StepOutput
from gpu_worker.service import ExecutorService, identity
from stages.runtime.bus import Bus
from stages.runtime.launch import BusAddress
from stages.runtime.stage import Context
from tests.gpu_worker.executor import ME, Watch, endless, give, launch_file, topology
from tests.gpu_worker.helpers import usage_events


async def test_a_lease_becomes_contiguous_tokens_one_attempt_and_free_credit(
    bus: Bus, watch: Watch, service: ExecutorService
) -> None:
    reply = await give(bus, endless("a"))
    assert reply.accepted
    assert (reply.credit.free_slots, reply.credit.running) == (1, [("a", 1)])
    await watch.until(lambda: watch.finish("a") == "length")
    offset = 0
    for item in watch.items:
        assert (item.request_id, item.attempt, item.offset) == ("a", 1, offset)
        offset += len(item.ids)
    assert offset == 200
    await watch.until(lambda: watch.credits[-1].running == [])
    assert watch.credits[-1].free_slots == 2
    await service.drain()
    events = await usage_events(bus)
    [attempt] = [event for event in events if isinstance(event, AttemptEvent)]
    assert (attempt.completion_tokens, attempt.prompt_tokens) == (200, 7)
    assert attempt.computed_tokens == 206  # the last token was sampled, never computed
    busy = sum(event.busy_ms for event in events if isinstance(event, IntervalEvent))
    assert attempt.accelerator_s == pytest.approx(busy / 1e3, abs=1e-6)


@pytest.mark.usefixtures("slow_steps")
async def test_a_cancel_frees_the_slot_and_ends_in_an_attempt(
    bus: Bus, watch: Watch, service: ExecutorService
) -> None:
    await give(bus, endless("a"))
    await watch.until(lambda: len(watch.items) > 2)
    notice = CancelNotice(request_id="a", reason=FinishReason.CANCELLED)
    await bus.publish(subjects.cancel("a"), notice)
    await watch.until(lambda: watch.credits[-1].free_slots == 2)
    await service.drain()
    attempts = [e for e in await usage_events(bus) if isinstance(e, AttemptEvent)]
    assert [(a.finish, a.completion_tokens < 200) for a in attempts] == [("cancelled", True)]


async def test_a_notice_about_another_attempt_or_by_another_pool_stops_nothing(
    bus: Bus, watch: Watch, service: ExecutorService
) -> None:
    await give(bus, endless("a"))
    await watch.until(lambda: len(watch.items) > 2)
    other = CancelNotice(request_id="a", reason=FinishReason.CANCELLED, attempt=7)
    await bus.publish(subjects.cancel("a"), other)
    elsewhere = CancelNotice(request_id="a", reason=FinishReason.CANCELLED, pool="left", epoch=3)
    await bus.publish(subjects.cancel("a"), elsewhere)  # it was moved: that owner runs it no more
    await watch.until(lambda: watch.finish("a") == "length")


@pytest.mark.usefixtures("slow_steps")
async def test_a_newer_attempt_replaces_the_older_and_resumes_where_it_is_told(
    bus: Bus, watch: Watch, service: ExecutorService
) -> None:
    first = endless("a")
    await give(bus, first)
    await watch.until(lambda: len(watch.items) > 4)
    emitted = [token for item in watch.items[:4] for token in item.ids]
    again = first.model_copy(update={"attempt": 2, "resume_ids": emitted})
    assert (await give(bus, again)).accepted
    assert not (await give(bus, first)).accepted
    await watch.until(lambda: watch.finish("a") == "length")
    second = [item for item in watch.items if item.attempt == 2]
    assert second[0].offset == len(emitted)
    assert sum(len(item.ids) for item in second) == 200 - len(emitted)


@pytest.mark.usefixtures("slow_steps")
async def test_no_more_leases_than_credit_and_none_while_draining(
    bus: Bus, watch: Watch, service: ExecutorService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service_module, "FINISH_S", 30.0)
    replies = [await give(bus, endless(name)) for name in "abc"]
    assert [reply.accepted for reply in replies] == [True, True, False]
    inventory = await bus.request(subjects.INVENTORY, InventoryCall(), Inventory, 5.0)
    assert sorted(inventory.running) == [("a", 1), ("b", 1)]
    draining = asyncio.create_task(service.drain())
    await watch.until(lambda: watch.credits[-1].draining)
    reply = await give(bus, endless("d"))
    assert (reply.accepted, reply.reason) == (False, "draining")
    await draining
    assert {watch.finish("a"), watch.finish("b")} == {"length"}


@pytest.mark.usefixtures("slow_steps")
async def test_what_cannot_finish_while_draining_ends_in_an_attempt_with_all_it_took(
    bus: Bus, watch: Watch, service: ExecutorService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service_module, "FINISH_S", 0.0)
    await give(bus, endless("a"))
    await watch.until(lambda: len(watch.items) > 2)
    await service.drain()
    events = await usage_events(bus)
    [attempt] = [event for event in events if isinstance(event, AttemptEvent)]
    assert attempt.finish == "moved"
    busy = sum(event.busy_ms for event in events if isinstance(event, IntervalEvent))
    assert attempt.accelerator_s == pytest.approx(busy / 1e3, abs=1e-6)
    assert watch.finish("a") is None  # the session goes on elsewhere


async def test_a_step_that_outlasts_the_drain_loses_neither_attempt_nor_interval(
    bus: Bus, watch: Watch, service: ExecutorService, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps, freed, stepping = count(), threading.Event(), Engine.step

    def step(engine: Engine) -> list[StepOutput]:
        if next(steps) == 5:
            freed.wait(60)
        return stepping(engine)

    monkeypatch.setattr(Engine, "step", step)
    monkeypatch.setattr(service_module, "FINISH_S", 0.0)
    monkeypatch.setattr(service_module, "STEP_S", 0.1)
    await give(bus, endless("a"))
    await watch.until(lambda: len(watch.items) == 5)
    try:
        await service.drain()
        events = await usage_events(bus)
    finally:
        freed.set()
        await asyncio.to_thread(service._engine.stop, 30)
    [attempt] = [event for event in events if isinstance(event, AttemptEvent)]
    assert (attempt.finish, attempt.completion_tokens) == ("moved", 5)
    intervals = [event for event in events if isinstance(event, IntervalEvent)]
    assert f"{intervals[-1].end_ms:.3f}" == service.detail()["interval_end_ms"]
    assert sum(event.busy_ms for event in intervals) >= attempt.accelerator_s * 1e3 - 1e-3


async def test_credit_and_intervals_go_on_after_an_error(
    bus: Bus, watch: Watch, service: ExecutorService, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed: list[str] = []

    def fail(name: str) -> None:
        failed.append(name)
        raise RuntimeError(name)

    with monkeypatch.context() as broken:
        broken.setattr(service._outbox, "credit", lambda: fail("credit"))
        broken.setattr(service._outbox._time, "report", lambda *_, **__: fail("interval"))
        await watch.until(lambda: {"credit", "interval"} <= set(failed))
    heard = len(watch.credits)
    await watch.until(lambda: len(watch.credits) > heard)
    before = service.detail()["interval_end_ms"]
    await watch.until(lambda: service.detail()["interval_end_ms"] != before)


def test_the_device_label_is_what_the_topology_resolves_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch = launch_file(tmp_path, BusAddress(url="", user="", password=""))
    service = ExecutorService(Context(launch, cast("Bus", None), topology(tmp_path), 1))
    assert service.detail()["device"] == "cpu"
    monkeypatch.setattr(service_module, "device_for", lambda wanted: f"best of {wanted}")
    assert identity(topology(tmp_path), 1, "small", ME).device == "best of auto"
