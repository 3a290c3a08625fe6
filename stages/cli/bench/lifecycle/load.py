"""Sixteen calls kept running over all doors, and what became of each."""

import asyncio
from collections.abc import Iterator
from typing import Final

from stages.cli.bench.lifecycle.call import Call, DoorName
from stages.cli.bench.lifecycle.site import PROMPTS, Site

RUNNING: Final = 16
TOKENS: Final = 96
FULL_S: Final = 60.0
PAUSE_S: Final = 0.2  # after a call that was not taken
DOORS: Final[tuple[DoorName, ...]] = ("grpc", "nats", "http")


class Load:
    """Each worker makes one call after the other at its door."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._stopping = False
        self._workers: list[asyncio.Task[None]] = []
        self._current: dict[int, Call] = {}
        self.calls: list[Call] = []

    def start(self) -> None:
        """Begin."""
        loop = asyncio.get_running_loop()
        self._workers = [loop.create_task(self._work(number)) for number in range(RUNNING)]

    async def stop(self) -> None:
        """No more calls; wait for those that run."""
        self._stopping = True
        await asyncio.gather(*self._workers)

    async def full(self) -> None:
        """Wait until every worker's call streams."""
        async with asyncio.timeout(FULL_S):
            while sum(call.running for call in self._current.values()) < RUNNING:  # noqa: ASYNC110
                await asyncio.sleep(0.02)

    async def once(self, door: DoorName, tokens: int) -> Call:
        """One more call, now."""
        call = Call(door, 0, tokens)
        self.calls.append(call)
        return await self._site.run(call)

    async def _work(self, number: int) -> None:
        prompt = number
        while not self._stopping:
            call = Call(DOORS[number % len(DOORS)], prompt % PROMPTS, TOKENS)
            prompt += 1
            self.calls.append(call)
            self._current[number] = call
            await self._site.run(call)
            if not call.was_accepted:
                await asyncio.sleep(PAUSE_S)

    def bad(self) -> Iterator[Call]:
        """Calls without a good terminal."""
        return (call for call in self.calls if call.problem is not None)

    def lost(self) -> list[Call]:
        """Of those, the ones that had been accepted."""
        return [call for call in self.bad() if call.was_accepted]

    def failed_between(self, begin: float, end: float) -> list[Call]:
        """Calls under way in a stretch of time that ended badly or were not taken."""
        return [call for call in self.bad() if call.overlaps(begin, end)]
