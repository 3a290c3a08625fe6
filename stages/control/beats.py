"""What the processes report of themselves: the last beat of each, and who is ready."""

import asyncio
import time
from dataclasses import dataclass
from typing import Final

from nats.aio.msg import Msg

from contracts.internal import Beat

SILENT_S: Final = 3.0


@dataclass(frozen=True)
class Heard:
    """A beat and when it came (monotonic seconds)."""

    beat: Beat
    at_s: float


class Beats:
    """Subscribed to all beats."""

    def __init__(self) -> None:
        self._last: dict[str, Heard] = {}
        self._waiting: dict[str, asyncio.Event] = {}

    def on_beat(self, msg: Msg) -> None:
        """Handler of `hr.beat.*.*`."""
        beat = Beat.model_validate_json(msg.data)
        self._last[beat.instance] = Heard(beat, time.monotonic())
        if beat.ready and beat.incarnation in self._waiting:
            self._waiting[beat.incarnation].set()

    async def ready(self, incarnation: str) -> None:
        """Return at the first beat by which this incarnation says that it serves."""
        event = self._waiting.setdefault(incarnation, asyncio.Event())
        try:
            await event.wait()
        finally:
            self._waiting.pop(incarnation, None)

    def of(self, instance: str, incarnation: str | None) -> Beat | None:
        """The last beat of exactly this incarnation."""
        heard = self._last.get(instance)
        return heard.beat if heard and heard.beat.incarnation == incarnation else None

    def heard_s(self, instance: str, incarnation: str | None) -> float | None:
        """When the last beat of exactly this incarnation came (monotonic seconds)."""
        heard = self._last.get(instance)
        return heard.at_s if heard and heard.beat.incarnation == incarnation else None

    def silent(self, instance: str) -> bool:
        """Whether nothing came for 3 s."""
        heard = self._last.get(instance)
        return heard is not None and time.monotonic() - heard.at_s > SILENT_S
