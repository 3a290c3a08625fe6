"""The end of an executor's time: what lies between its last report and its exit."""

import logging
from typing import Final

import nats.errors
import nats.js.errors
from nats.aio.msg import Msg

from contracts import subjects
from contracts.internal import Beat
from contracts.topology import Topology
from contracts.usage import USAGE_EVENT, IntervalEvent, Price
from stages.runtime.bus import Bus

_STORE_S: Final = 2.0

log = logging.getLogger("headrace.control")


class ExecutorTime:
    """Follows the intervals that executors report, so that their time tiles from spawn to exit."""

    def __init__(self, bus: Bus, topology: Topology, generation: int) -> None:
        self._bus = bus
        self._topology = topology
        self._generation = generation
        self._booked_ms: dict[str, float] = {}

    async def start(self) -> None:
        """Listen to all interval reports."""
        await self._bus.listen(subjects.usage("interval", "*"), self._on_interval)

    def _on_interval(self, msg: Msg) -> None:
        event = USAGE_EVENT.validate_json(msg.data)
        if isinstance(event, IntervalEvent):
            until = self._booked_ms.get(event.executor, 0.0)
            self._booked_ms[event.executor] = max(until, event.end_ms)

    async def close(
        self,
        incarnation: str,
        pool: str,
        spawned_ms: float,
        exit_ms: float,
        clean: bool,
        beat: Beat | None,
    ) -> None:
        """Book the rest of an executor's life: `drain` after a clean exit, else `lost`."""
        start_ms = max(self._booked_ms.pop(incarnation, spawned_ms), _end_by_beat(beat))
        if exit_ms <= start_ms:
            return
        event = self._event(incarnation, pool, start_ms, exit_ms, clean, beat)
        try:
            await self._bus.store(
                subjects.usage("interval", pool), event, event.key, deadline_s=_STORE_S
            )
        except (OSError, TimeoutError, nats.errors.Error, nats.js.errors.Error) as error:
            log.error(
                "the last %.0f ms of %s are not booked: %r", exit_ms - start_ms, incarnation, error
            )

    def _event(
        self,
        incarnation: str,
        pool: str,
        start_ms: float,
        end_ms: float,
        clean: bool,
        beat: Beat | None,
    ) -> IntervalEvent:
        section = self._topology.pools[pool]
        length_ms = end_ms - start_ms
        return IntervalEvent(
            executor=incarnation,
            pool=pool,
            model=section.model,
            zone=section.zone,
            device=beat.detail.get("device", "unknown") if beat else "unknown",
            generation=self._generation,
            start_ms=start_ms,
            end_ms=end_ms,
            drain_ms=length_ms if clean else 0.0,
            lost_ms=0.0 if clean else length_ms,
            price=Price(
                accelerator_hour=section.price.accelerator_hour, currency=self._topology.currency
            ),
        )


def _end_by_beat(beat: Beat | None) -> float:
    """What it said of itself, for reports that passed while control was not connected."""
    try:
        return float(beat.detail.get("interval_end_ms", "0")) if beat else 0.0
    except ValueError:
        return 0.0
