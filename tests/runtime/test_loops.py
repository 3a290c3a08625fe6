"""Background loops go on after a failure, and beats are such a loop."""

import asyncio
import contextlib
import logging
from pathlib import Path
from typing import Any

import nats.errors
import pytest

from contracts import subjects
from stages.runtime.bus import Bus
from stages.runtime.launch import BusAddress
from stages.runtime.loops import forever
from stages.runtime.stage import BeatLoop
from tests.support.stages import context, topology


class Step:
    """Fails as often as told, then ends the test by an event."""

    def __init__(self, failures: int) -> None:
        self.failures = failures
        self.calls = 0
        self.worked = asyncio.Event()

    async def __call__(self) -> None:
        self.calls += 1
        if self.calls <= self.failures:
            raise nats.errors.OutboundBufferLimitError
        self.worked.set()


async def test_a_loop_goes_on_after_failures_and_logs_few_of_them(
    caplog: pytest.LogCaptureFixture,
) -> None:
    step = Step(failures=100)
    with caplog.at_level(logging.WARNING, "headrace.loops"):
        task = asyncio.ensure_future(forever("housework", step, 0.0))
        await asyncio.wait_for(step.worked.wait(), 30)
        await asyncio.sleep(0)
    assert not task.done()
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    said = [one.getMessage() for one in caplog.records]
    assert len([one for one in said if "failed" in one]) == 7  # 1, 2, 4 … 64
    assert "housework works again after 100 failures" in said


class Stuck:
    """A service whose first figures cannot be read."""

    def __init__(self) -> None:
        self.asked = 0

    async def start(self) -> None:
        """Serves at once."""

    async def drain(self) -> None:
        """Nothing runs."""

    def counters(self) -> dict[str, float]:
        """Raises twice."""
        self.asked += 1
        if self.asked <= 2:
            raise RuntimeError("not now")
        return {}

    def detail(self) -> dict[str, str]:
        """Nothing."""
        return {}


async def test_beats_go_on_after_one_could_not_be_sent(
    bus: Bus, bus_address: BusAddress, tmp_path: Path
) -> None:
    heard = asyncio.Event()

    def on_beat(_: Any) -> None:
        heard.set()

    await bus.listen(subjects.BEAT_ALL, on_beat)
    await bus.flush()
    made = context(bus, bus_address, tmp_path, topology(), "routing")
    beating = asyncio.ensure_future(BeatLoop(made, Stuck()).run())
    await asyncio.wait_for(heard.wait(), 30)
    beating.cancel()
