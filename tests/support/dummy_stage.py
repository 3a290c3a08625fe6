"""The smallest real stage, for tests of control: `python -m tests.support.dummy_stage --launch FILE`."""

import asyncio
import os

from contracts import subjects
from contracts.errors import ErrorCode, HeadraceError
from contracts.topology import Topology
from contracts.usage import IntervalEvent, Price
from stages.runtime.clock import now_ms
from stages.runtime.stage import Context, main

MODE = "DUMMY_STAGE"  # crash: ends at its start; slow: drains for a second; empty: serves


class Dummy:
    """Reports one interval when it belongs to a pool, and counters that balance."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.booked_ms = 0.0

    async def start(self) -> None:
        """Crash when told to, else book the time so far."""
        if os.environ.get(MODE) == "crash":
            raise SystemExit("the dummy was told to crash")
        self._obey("start")
        if self.context.launch.pool is not None:
            await self.book()

    async def book(self) -> None:
        """Publish the interval from spawn until now, as idle time."""
        launch = self.context.launch
        assert launch.pool is not None
        self.booked_ms = now_ms()
        event = IntervalEvent(
            executor=launch.incarnation,
            pool=launch.pool,
            model="m",
            zone="z",
            device="cpu",
            generation=self.context.generation,
            start_ms=launch.spawned_ms,
            end_ms=self.booked_ms,
            idle_ms=self.booked_ms - launch.spawned_ms,
            price=Price(accelerator_hour=1.0, currency="USD"),
        )
        await self.context.bus.store(
            subjects.usage("interval", launch.pool), event, event.key, deadline_s=5
        )

    async def prepare(self, topology: Topology) -> None:
        """Refuse when the test wants that."""
        self._obey("prepare")

    async def reconfigure(self, topology: Topology, generation: int) -> None:
        """Fail when the test wants that."""
        self._obey("reconfigure")

    def _obey(self, step: str) -> None:
        """Raise the text of `<state>/dummy/<instance>.<step>` for as long as that file is there."""
        launch = self.context.launch
        wish = launch.state / "dummy" / f"{launch.instance}.{step}"
        if wish.exists():
            raise HeadraceError(ErrorCode.CONFLICT, wish.read_text())

    async def drain(self) -> None:
        """Nothing runs here."""
        if os.environ.get(MODE) == "slow":
            await asyncio.sleep(1.0)
            print("drained", flush=True)

    def counters(self) -> dict[str, float]:
        """What queueing would count."""
        if self.context.launch.stage != "queueing":
            return {}
        names = ("accepted", "finished", "cancelled", "failed", "expired", "running", "queued")
        return dict.fromkeys(names, 0.0)

    def detail(self) -> dict[str, str]:
        """As an executor."""
        return {"device": "cpu"}


if __name__ == "__main__":
    main("tests.support.dummy_stage", Dummy)
