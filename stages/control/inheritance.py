"""Taking over what an earlier control left running, and settling what ended meanwhile."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final

from stages.control.adoption import Found
from stages.control.launchers import NatsLauncher
from stages.control.leftovers import end_records
from stages.control.lost import ExecutorTime
from stages.control.order import BUS, ProcessSpec
from stages.control.process import Adopted
from stages.control.processes import Processes
from stages.control.progress import Progress
from stages.control.silence import HUNG_S
from stages.control.state import ProcessRecord
from stages.control.supervisor import Supervised
from stages.runtime.clock import now_ms

_REPORTS_MS: Final = 2500.0  # an executor that reported no interval for so long had ended

log = logging.getLogger("headrace.control")


class Inheritance:
    """Used once, during the start of a control that has found something."""

    def __init__(self, found: Found) -> None:
        self._looked_ms = found.looked_ms
        self._task: asyncio.Task[None] | None = None
        self._living = list(found.living)
        # Executors that ended while nobody looked, and whose time is not booked to the end yet.
        self._unsettled = [one for one in found.ended if one.pool is not None]

    @property
    def records(self) -> list[ProcessRecord]:
        """What must stay written down: this control, too, may be killed before it has done all."""
        return [*self._living, *self._unsettled]

    def take_bus(self, nats: Supervised, launcher: NatsLauncher) -> bool:
        """Go on with the nats-server that runs, if one does."""
        for record in [one for one in self._living if one.stage == BUS]:
            self._living.remove(record)
            child = Adopted.watch(record.identity)
            if child is not None:
                nats.restarts, nats.last_error = record.restarts, record.last_error
                nats.adopt(child, launcher.life(record.spawned_ms or now_ms()), HUNG_S)
                nats.start()
                return True
        return False

    async def take(
        self, processes: Processes, planned: Sequence[ProcessSpec], progress: Progress
    ) -> None:
        """Take over all the others; who cannot be taken over is ended."""
        plans = {one.instance: one for one in planned}
        foreign = []
        for record in list(self._living):
            spec = record.spec or plans.get(record.instance)
            if spec is None or not record.incarnation or spec.instance in processes.specs():
                foreign.append(record)
                continue
            child = Adopted.watch(record.identity)
            if child is not None:
                processes.adopt(spec, record, child)
            elif record.pool is not None:
                self._unsettled.append(record)
            self._living.remove(record)
        await end_records(foreign)
        self._living.clear()
        self._unsettled += [one for one in foreign if one.pool is not None]
        names = list(processes.specs())
        log.warning("taken over: %s", ", ".join(names) or "nothing but the state")
        progress.tell("taken_over", instances=names)

    def settle(self, executors: ExecutorTime, write: Callable[[], None]) -> None:
        """Book the rest of the time of executors that have ended, in the background."""

        async def settle() -> None:
            for record in list(self._unsettled):
                await self._close(record, executors)
                self._unsettled.remove(record)
                write()

        write()
        self._task = asyncio.get_running_loop().create_task(settle())

    async def _close(self, record: ProcessRecord, executors: ExecutorTime) -> None:
        """Its end was not seen: it lived at most until now, or as long as its reports tell."""
        assert record.pool is not None
        last = executors.last(record.incarnation)
        seen_ms = max(self._looked_ms, record.spawned_ms, last.end_ms if last else 0.0)
        exit_ms = min(now_ms(), seen_ms + _REPORTS_MS)
        await executors.close(
            record.incarnation, record.pool, record.spawned_ms, exit_ms, False, None
        )
