"""From the server's word that a connection broke to the loss of its process, 0.2 s later."""

import asyncio
import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import nats.errors
from nats.aio.msg import Msg

from contracts.errors import HeadraceError
from stages.queueing.suspects import CALM_S, Suspects
from stages.runtime.bus import Bus, UnservedError

PROBE_S: Final = 1.0
NO_CALL: Final = b"{}"  # whoever is subscribed answers, if only that it cannot read this

log = logging.getLogger("headrace.queueing")


@dataclass(frozen=True)
class Kind:
    """Processes that are looked after alike; they are named by incarnation."""

    knows: Callable[[str], bool]
    heard_s: Callable[[str], float]  # monotonic
    subject: Callable[[str], str]  # where it answers questions
    lose: Callable[[str], None]  # it is gone, now


class Eviction:
    """Hears `hr.sys.disconnect`. Without it processes are lost by silence, seconds later."""

    def __init__(self, bus: Bus, now_s: Callable[[], float], kinds: Sequence[Kind]) -> None:
        self._bus = bus
        self._now_s = now_s
        self._kinds = kinds
        self._timer: asyncio.TimerHandle | None = None
        self.suspects = Suspects()

    def on_disconnect(self, msg: Msg) -> None:
        """The event as nats-server sends it; those of connections that are none of ours too."""
        client = json.loads(msg.data).get("client", {})
        name = str(client.get("name", ""))
        if self._kind(name) is not None:
            self.suspects.broke(name, self._now_s())
            self._arm()

    def _kind(self, name: str) -> Kind | None:
        return next((kind for kind in self._kinds if kind.knows(name)), None)

    def _heard_s(self, name: str) -> float:
        kind = self._kind(name)
        return kind.heard_s(name) if kind is not None else float("inf")

    def _arm(self) -> None:
        wait_s = self.suspects.wait_s(self._now_s())
        if wait_s is not None and self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(max(wait_s, 0.01), self._look)

    def _look(self) -> None:
        self._timer = None
        now_s = self._now_s()
        if self._bus.connected_for_s() < CALM_S:
            self.suspects.calm(now_s)
        for name in self.suspects.due(now_s, self._heard_s):
            self._bus.spawn(self._decide(name))
        self._arm()

    async def _decide(self, name: str) -> None:
        """One that is connected again is subscribed again, even before its next word."""
        kind = self._kind(name)
        if kind is None:
            return
        try:
            await self._bus.request_bytes(kind.subject(name), NO_CALL, PROBE_S)
        except UnservedError:
            log.warning("%s is gone: its connection broke and is not back", name)
            kind.lose(name)
        except (HeadraceError, OSError, nats.errors.Error) as error:
            log.info("%s lost its connection and answers again (%r)", name, error)
