"""What leaves an executor, without an engine: nothing that was used is lost, whatever the bus does."""

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any, cast

import nats.errors
import pytest
from nats.aio.msg import Msg
from nats.js.api import RetentionPolicy, StreamConfig

from contracts import subjects
from contracts.frames import FRAME_DECODER, TokenItem
from contracts.topology import Topology
from contracts.usage import AttemptEvent, IntervalEvent
from gpu_worker.driver import Intervals, StepReport
from gpu_worker.outbox import Outbox
from gpu_worker.output import StepOutput
from gpu_worker.request import FinishReason
from gpu_worker.roster import Roster
from gpu_worker.service import onto
from stages.runtime.bus import Bus
from stages.runtime.streams import ensure_streams
from tests.gpu_worker.helpers import usage_events
from tests.gpu_worker.test_roster import lease
from tests.gpu_worker.test_timekeeping import ME

SPAWNED_MS = 1_700_000_000_000.0
TOPOLOGY = Topology.model_validate(
    {
        "version": 1,
        "models": {"m": {"source": "m"}},
        "pools": {"small": {"model": "m"}},
        "routes": [{"pool": "small"}],
        "tenants": {"demo": {"keys": ["sha256:" + "0" * 64]}},
    }
)
STEP = Intervals(busy_us=1500, host_us=200, idle_us=300)


@pytest.fixture
def roster() -> Roster:
    """Room for eight."""
    return Roster(slots=8, kv_tokens=8192, block_size=64)


@pytest.fixture
def outbox(bus: Bus, roster: Roster) -> Outbox:
    """Of an executor that has just started."""
    return Outbox(bus, roster, ME, SPAWNED_MS)


def output(name: str, offset: int = 0, finish: FinishReason | None = None) -> StepOutput:
    """One token of the request's first attempt; 1,500 us a step."""
    return StepOutput(
        f"{name}:1", (7,), offset, finish, 99, 0, 99 + offset, 1500, 1500 * (offset + 1)
    )


def report(total: Intervals, *outputs: StepOutput, began_ms: float = SPAWNED_MS) -> StepReport:
    """A step of 1.5 ms."""
    return StepReport(outputs, (), began_ms, began_ms + 1.5, total)


async def until(condition: Callable[[], bool]) -> None:
    """Wait at most 30 s."""
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.01)


async def test_usage_waits_for_its_stream_and_leaves_no_hole(
    bus: Bus, outbox: Outbox, roster: Roster
) -> None:
    total = Intervals()

    async def run(*names: str) -> None:
        nonlocal total
        for name in names:
            assert roster.take(lease(name))
            total = total.plus(STEP)
            outbox.put(report(total, output(name, finish="length")))
            await outbox.next_report()

    await run("a", "b")  # the stream is missing
    tried: Counter[str] = Counter()

    def count(msg: Msg) -> None:
        tried[(msg.headers or {})["Nats-Msg-Id"]] += 1

    listening = await bus.listen(subjects.USAGE_ALL, count)
    refusing = StreamConfig(
        name=subjects.USAGE_STREAM,
        subjects=[subjects.USAGE_ALL],
        retention=RetentionPolicy.WORK_QUEUE,
        max_msg_size=1,
    )
    await bus.js.add_stream(refusing)  # now it is there, but refuses
    await run("c", "d")
    await until(lambda: max(tried.values(), default=0) > 1)
    await listening.unsubscribe()
    await bus.js.delete_stream(subjects.USAGE_STREAM)
    await ensure_streams(bus.js, TOPOLOGY)
    await run("e")
    await until(lambda: outbox.unstored == 0)
    await outbox.close(total.plus(STEP))
    events = await usage_events(bus)
    attempts = [event.request_id for event in events if isinstance(event, AttemptEvent)]
    assert attempts == ["a", "b", "c", "d", "e"]
    intervals = [event for event in events if isinstance(event, IntervalEvent)]
    assert len(intervals) == 6
    assert intervals[0].start_ms == SPAWNED_MS
    assert all(before.end_ms == after.start_ms for before, after in pairwise(intervals))
    assert sum(event.busy_ms for event in intervals) == pytest.approx(6 * 1.5)


async def test_frames_that_cannot_be_sent_cost_neither_room_nor_attempt(
    bus: Bus, outbox: Outbox, roster: Roster, monkeypatch: pytest.MonkeyPatch
) -> None:
    await ensure_streams(bus.js, TOPOLOGY)

    async def full(*_: object, **__: object) -> None:
        raise nats.errors.OutboundBufferLimitError

    assert roster.take(lease("a"))
    with monkeypatch.context() as away:
        away.setattr(bus, "publish", full)
        outbox.put(report(STEP, output("a", finish="stop")))
        await outbox.next_report()
    assert len(roster) == 0
    assert outbox.counts["unsent"] == 2  # one frame, one credit
    await until(lambda: outbox.unstored == 0)
    assert {type(event) for event in await usage_events(bus)} == {AttemptEvent, IntervalEvent}


async def test_an_attempt_began_when_its_first_step_did_however_late_that_is_read(
    bus: Bus, outbox: Outbox, roster: Roster
) -> None:
    await ensure_streams(bus.js, TOPOLOGY)
    items: list[TokenItem] = []
    await bus.listen(
        subjects.tokens("egress-0-a"),
        lambda msg: items.extend(FRAME_DECODER.decode(msg.data).items),
    )
    assert roster.take(lease("a"))
    outbox.put(report(STEP, output("a"), began_ms=SPAWNED_MS + 1000))
    late = report(STEP.plus(STEP), output("a", 1, "length"), began_ms=SPAWNED_MS + 5000)
    outbox.put(late)
    await outbox.next_report()
    await outbox.next_report()
    await until(lambda: len(items) == 2 and outbox.unstored == 0)
    assert {item.started_ms for item in items} == {SPAWNED_MS + 1000}
    [attempt] = [e for e in await usage_events(bus) if isinstance(e, AttemptEvent)]
    assert (attempt.started_ms, attempt.finished_ms) == (SPAWNED_MS + 1000, late.ended_ms)


async def test_closing_books_whatever_the_engine_never_answered_for(
    bus: Bus, outbox: Outbox, roster: Roster
) -> None:
    await ensure_streams(bus.js, TOPOLOGY)
    for name in ("running", "waiting"):
        assert roster.take(lease(name))
    outbox.put(report(STEP, output("running")))
    await outbox.next_report()
    await outbox.close(replace(STEP, idle_us=9000))
    await until(lambda: outbox.unstored == 0)
    events = await usage_events(bus)
    attempts = {e.request_id: e for e in events if isinstance(e, AttemptEvent)}
    assert {name: e.finish for name, e in attempts.items()} == {
        "running": "moved",
        "waiting": "moved",
    }
    assert attempts["running"].accelerator_s == pytest.approx(0.0015)
    assert attempts["waiting"].accelerator_s == 0.0
    [interval] = [e for e in events if isinstance(e, IntervalEvent)]
    assert interval.busy_ms == pytest.approx(1.5)


def test_a_report_for_a_loop_that_has_closed_harms_nobody() -> None:
    class Closing(asyncio.AbstractEventLoop):
        """Closes between the question and the call."""

        def is_closed(self) -> bool:
            return False

        def call_soon_threadsafe(self, *_: object, **__: object) -> Any:
            raise RuntimeError("Event loop is closed")

    onto(cast("asyncio.AbstractEventLoop", Closing()), lambda _: None)(
        StepReport((), (), 0.0, 0.0, Intervals())
    )
