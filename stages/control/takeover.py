"""Asking running processes whether they could serve a generation, and seeing that they do."""

import asyncio
import time
from collections.abc import Collection
from typing import Final

from contracts import subjects
from contracts.errors import ErrorCode, HeadraceError
from contracts.internal import Beat, Done
from contracts.lifecycle import Generation, PrepareCall
from stages.control.fleet import Fleet
from stages.control.order import EXECUTOR
from stages.runtime.bus import Bus
from stages.runtime.clock import now_ms

PREPARE_S: Final = 30.0
TAKE_S: Final = 15.0
BACK_S: Final = (
    5.0  # a stage that is being started again is waited for; then it starts with what serves
)
_FRESH_MS: Final = 3000.0
_LOOK_S: Final = 0.1
# The process has just ended or has not subscribed yet: it is asked again.
_NOBODY: Final = frozenset({ErrorCode.NO_CAPACITY, ErrorCode.SHUTTING_DOWN})


def live(beat: Beat | None) -> bool:
    """Whether a process serves now, by its last beat."""
    return beat is not None and beat.ready and now_ms() - beat.sent_ms < _FRESH_MS


class Takeover:
    """Every running process, one generation."""

    def __init__(self, bus: Bus, fleet: Fleet) -> None:
        self._bus = bus
        self._fleet = fleet

    async def prepare(self, generation: Generation, instances: Collection[str]) -> int:
        """Ask all; returns how many said yes. Raises `HeadraceError` with every no.

        What does not serve now is not asked: it will start with whatever serves then.
        """
        asked = await asyncio.gather(
            *(self._ask(generation, one) for one in instances), return_exceptions=True
        )
        refusals = []
        for error in asked:
            if isinstance(error, HeadraceError):
                refusals.append(error)
            elif isinstance(error, BaseException):
                raise error
        if refusals:
            text = "; ".join(str(error) for error in refusals)
            raise HeadraceError(refusals[0].info.code, text)
        return sum(one is True for one in asked)

    async def _ask(self, generation: Generation, instance: str) -> bool:
        began = time.monotonic()
        patience_s = 0.0 if self._fleet.specs()[instance].stage == EXECUTOR else BACK_S
        while (left_s := began + PREPARE_S - time.monotonic()) > 0:
            beat = self._fleet.beat(instance)
            if beat is None or not live(beat):
                if time.monotonic() - began > patience_s:
                    return False
                await asyncio.sleep(_LOOK_S)
                continue
            try:
                call = PrepareCall(generation=generation)
                subject = subjects.prepare(beat.incarnation)
                return (await self._bus.request(subject, call, Done, left_s)).ok
            except HeadraceError as error:
                now = self._fleet.beat(instance)
                replaced = now is None or now.incarnation != beat.incarnation
                if error.info.code not in _NOBODY and not replaced:
                    raise HeadraceError(error.info.code, f"{instance}: {error}") from error
                await asyncio.sleep(_LOOK_S)
        raise HeadraceError(
            ErrorCode.DEADLINE_EXCEEDED,
            f"{instance} did not say within {PREPARE_S:.0f} s whether it could serve",
        )

    async def until_serving(self, generation: int, instances: Collection[str]) -> None:
        """Wait until all show it by their beats. Raises `HeadraceError` with each that does not.

        An executor that has ended meanwhile is not waited for: its model may take long to load.
        """
        before = {one for one in instances if live(self._fleet.beat(one))}
        deadline = time.monotonic() + TAKE_S
        while late := self._late(generation, before):
            if time.monotonic() > deadline:
                raise HeadraceError(
                    ErrorCode.DEADLINE_EXCEEDED,
                    f"not taken over within {TAKE_S:.0f} s: {'; '.join(late)}",
                )
            await asyncio.sleep(_LOOK_S)

    def _late(self, generation: int, instances: Collection[str]) -> list[str]:
        specs = self._fleet.specs()
        late = []
        for instance in sorted(one for one in instances if one in specs):
            beat = self._fleet.beat(instance)
            if beat is None or not live(beat):
                if specs[instance].stage != EXECUTOR:
                    late.append(f"{instance} does not report")
            elif beat.generation < generation:
                late.append(f"{instance}: {beat.problem or f'serves generation {beat.generation}'}")
        return late
