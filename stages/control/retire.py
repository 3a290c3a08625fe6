"""Processes that are not wanted any more: drained and stopped, executors only when nothing needs them."""

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Sequence
from typing import Final

import nats.errors

from contracts import subjects
from contracts.lifecycle import Generation
from stages.control.fleet import Fleet
from stages.control.order import ProcessSpec, Steps
from stages.control.takeover import live
from stages.runtime.bus import Bus
from stages.runtime.limits import DRAIN_S, END_S

EMPTY_S: Final = 30.0  # a removed pool is empty but for what came in while it was being removed
_LOOK_S: Final = 0.5

Tell = Callable[[str], None]

log = logging.getLogger("headrace.change")


class Retire:
    """Ends processes in order; none of their requests fails."""

    def __init__(self, bus: Bus, fleet: Fleet) -> None:
        self._bus = bus
        self._fleet = fleet

    async def all(self, surplus: Sequence[ProcessSpec], serves: Generation, tell: Tell) -> None:
        """Everything at once; executors of a removed pool once it is empty."""
        gone = _gone(surplus, serves)
        held = bool(gone) and not await self._emptied(gone)
        waiting = [one for one in surplus if held and one.pool in gone]
        if waiting:
            tell(
                f"{_names(waiting)} will stop once the last requests of {', '.join(sorted(gone))} have ended"
            )
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
        gone = _gone(steps.surplus, serves)
        held = bool(gone) and not await self._empty(gone)
        await self._stop(
            [one for one in steps.surplus if not (held and one.pool in gone)], log.warning
        )

    async def _stop(self, surplus: Sequence[ProcessSpec], tell: Tell) -> None:
        if not surplus:
            return
        tell(f"draining {_names(surplus)}")
        await asyncio.gather(
            *(self._fleet.stop(one.instance, DRAIN_S[one.stage] + END_S) for one in surplus)
        )
        tell(f"stopped {_names(surplus)}")

    async def _emptied(self, pools: Collection[str]) -> bool:
        deadline = time.monotonic() + EMPTY_S
        while not await self._empty(pools):
            if time.monotonic() > deadline:
                return False
        return True

    async def _empty(self, pools: Collection[str]) -> bool:
        """Nothing is stored at two looks: what was being admitted at the switch has been by then."""
        for last in (False, True):
            try:
                if any([await stored_requests(self._bus, pool) for pool in pools]):
                    await asyncio.sleep(_LOOK_S)
                    return False
            except (OSError, TimeoutError, nats.errors.Error) as error:
                log.warning("whether a removed pool is empty is not known: %r", error)
                await asyncio.sleep(_LOOK_S)
                return False
            if not last:
                await asyncio.sleep(_LOOK_S)
        return True


async def stored_requests(bus: Bus, pool: str) -> int:
    """Accepted requests of a pool that have not ended."""
    subject = subjects.stored(pool)
    info = await bus.js.stream_info(subjects.QUEUE_STREAM, subjects_filter=subject)
    return int((info.state.subjects or {}).get(subject, 0))


def _names(specs: Sequence[ProcessSpec]) -> str:
    return ", ".join(one.instance for one in specs)


def _gone(surplus: Sequence[ProcessSpec], serves: Generation) -> set[str]:
    return {one.pool for one in surplus if one.pool and one.pool not in serves.topology.pools}
