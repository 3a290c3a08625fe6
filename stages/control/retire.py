"""Processes that are not wanted any more: drained and stopped, executors only when nothing needs them."""

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Sequence
from typing import Final

from contracts.errors import ErrorCode, HeadraceError
from contracts.lifecycle import Generation
from stages.control.fleet import Fleet
from stages.control.order import ProcessSpec, Steps
from stages.control.takeover import Takeover, live
from stages.runtime.limits import DRAIN_S, END_S

EMPTY_S: Final = 30.0  # a removed pool is empty but for what came in while it was being removed
_LOOK_S: Final = 0.5

Tell = Callable[[str], None]

log = logging.getLogger("headrace.change")


class Retire:
    """Ends processes in order; none of their requests fails."""

    def __init__(self, fleet: Fleet, takeover: Takeover) -> None:
        self._fleet = fleet
        self._takeover = takeover

    async def all(self, surplus: Sequence[ProcessSpec], serves: Generation, tell: Tell) -> None:
        """Everything at once; executors of a removed pool once it is empty."""
        gone = {one.pool for one in surplus if one.pool and one.pool not in serves.topology.pools}
        held = bool(gone) and not await self._emptied(serves)
        waiting = [one for one in surplus if held and one.pool in gone]
        if waiting:
            tell(f"{_names(waiting)} will stop once the last requests of {_words(gone)} have ended")
        await self._stop([one for one in surplus if one not in waiting], tell)

    async def started(self, new: Collection[ProcessSpec], tell: Tell) -> None:
        """What was started in vain."""
        known = self._fleet.specs()
        await self._stop([one for one in new if one.instance in known], tell)

    async def replaced(self, steps: Steps, serves: Generation) -> None:
        """Surplus that nothing waits for: those that take its place serve, its pool is empty."""
        ready = all(live(self._fleet.beat(one.instance)) for one in steps.wanted)
        if not steps.surplus or not ready:
            return
        gone = {one.pool for one in steps.surplus if one.pool not in serves.topology.pools}
        held = bool(gone - {None}) and not await self._empty(serves)
        log.warning("%s: not wanted, to be stopped", _names(steps.surplus))
        await self._stop(
            [one for one in steps.surplus if not (held and one.pool in gone and one.pool)], log.info
        )

    async def _stop(self, surplus: Sequence[ProcessSpec], tell: Tell) -> None:
        if not surplus:
            return
        tell(f"draining {_names(surplus)}")
        await asyncio.gather(
            *(self._fleet.stop(one.instance, DRAIN_S[one.stage] + END_S) for one in surplus)
        )
        tell(f"stopped {_names(surplus)}")

    async def _emptied(self, serves: Generation) -> bool:
        deadline = time.monotonic() + EMPTY_S
        while not await self._empty(serves):
            if time.monotonic() > deadline:
                return False
            await asyncio.sleep(_LOOK_S)
        return True

    async def _empty(self, serves: Generation) -> bool:
        """Queueing says no (conflict) to a topology without a pool that still holds requests."""
        queueing = [one.instance for one in self._fleet.specs().values() if one.stage == "queueing"]
        try:
            await self._takeover.prepare(serves, queueing)
        except HeadraceError as error:
            if error.info.code != ErrorCode.CONFLICT:
                log.warning("whether the pool is empty is not known: %s", error)
            return False
        return True


def _names(specs: Sequence[ProcessSpec]) -> str:
    return ", ".join(one.instance for one in specs)


def _words(pools: Collection[str | None]) -> str:
    return ", ".join(sorted(one for one in pools if one))
