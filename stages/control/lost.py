"""The end of an executor's time: what lies between its last report and its exit."""

import logging
from typing import Final

import nats.errors
import nats.js.errors
from nats.aio.msg import Msg

from contracts import subjects
from contracts.internal import Beat
from contracts.topology import PoolSection, Topology
from contracts.usage import USAGE_EVENT, IntervalEvent, Price
from stages.runtime.bus import Bus

_STORE_S: Final = 2.0
_READ_S: Final = 2.0

log = logging.getLogger("headrace.control")


class ExecutorTime:
    """Follows the intervals that executors report, so that their time tiles from spawn to exit."""

    def __init__(self, bus: Bus, topology: Topology, generation: int) -> None:
        self._bus = bus
        self._pools: dict[str, PoolSection] = {}
        self._booked: dict[str, IntervalEvent] = {}
        self.take_over(topology, generation)

    def take_over(self, topology: Topology, generation: int) -> None:
        """Another topology serves; the last time of a removed pool's executors has its old price."""
        self._pools.update(topology.pools)
        self._currency = topology.currency
        self._generation = generation

    def expect(self, topology: Topology) -> None:
        """A topology that may come: executors of its new pools are being started."""
        self._pools = {**topology.pools, **self._pools}

    async def start(self) -> None:
        """Listen to all interval reports, and read those that came while control was away."""
        await self._bus.listen(subjects.usage("interval", "*"), self._on_interval)
        await self._catch_up()

    async def _catch_up(self) -> None:
        """HR_BOOKED has the last minutes; each executor reports every two seconds at least."""
        try:
            info = await self._bus.js.stream_info(subjects.BOOKED_STREAM)
            if info.state.messages == 0:
                return
            copies = await self._bus.js.subscribe(
                subjects.booked("*"), stream=subjects.BOOKED_STREAM, ordered_consumer=True
            )
            for _ in range(info.state.messages):
                self._on_interval(await copies.next_msg(_READ_S))
            await copies.unsubscribe()
        except (OSError, TimeoutError, nats.errors.Error, nats.js.errors.Error) as error:
            log.warning("what executors have booked so far is not known: %r", error)

    def last(self, incarnation: str) -> IntervalEvent | None:
        """The last interval that an executor has booked."""
        return self._booked.get(incarnation)

    def _on_interval(self, msg: Msg) -> None:
        event = USAGE_EVENT.validate_json(msg.data)
        if isinstance(event, IntervalEvent):
            known = self._booked.get(event.executor)
            if known is None or known.end_ms < event.end_ms:
                self._booked[event.executor] = event

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
        last = self._booked.pop(incarnation, None)
        start_ms = max(spawned_ms if last is None else last.end_ms, _end_by_beat(beat))
        if exit_ms <= start_ms:
            return
        if pool not in self._pools:  # of a change that an earlier control did not finish
            log.error("%s: pool %r is not known, its last time is not booked", incarnation, pool)
            return
        event = self._event(incarnation, pool, start_ms, exit_ms, clean, beat, last)
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
        last: IntervalEvent | None,
    ) -> IntervalEvent:
        section = self._pools[pool]
        length_ms = end_ms - start_ms
        return IntervalEvent(
            executor=incarnation,
            pool=pool,
            model=section.model,
            zone=section.zone,
            device=_said("device", beat, last) or "unknown",
            fraction=_fraction(beat, last),
            fingerprint=_said("fingerprint", beat, last),
            generation=self._generation,
            start_ms=start_ms,
            end_ms=end_ms,
            drain_ms=length_ms if clean else 0.0,
            lost_ms=0.0 if clean else length_ms,
            price=Price(accelerator_hour=section.price.accelerator_hour, currency=self._currency),
        )


def _said(name: str, beat: Beat | None, last: IntervalEvent | None) -> str:
    """What the executor said of itself, in its last beat or its last interval."""
    said = beat.detail.get(name) if beat is not None else None
    return said or str(getattr(last, name, ""))


def _fraction(beat: Beat | None, last: IntervalEvent | None) -> float:
    try:
        return float(_said("fraction", beat, last) or 1.0)
    except ValueError:
        return 1.0


def _end_by_beat(beat: Beat | None) -> float:
    """What it said of itself, for reports that passed while control was not connected."""
    try:
        return float(beat.detail.get("interval_end_ms", "0")) if beat else 0.0
    except ValueError:
        return 0.0
