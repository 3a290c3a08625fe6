"""What control looks after while everything runs: logs, hung processes, streams, its own pulse."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final

from contracts.topology import Topology
from stages.control.beats import Beats
from stages.control.bus_watch import HUNG_S as BUS_HUNG_S
from stages.control.bus_watch import Deafness, works
from stages.control.guard import LOOK_S as GUARD_S
from stages.control.guard import Guard
from stages.control.logs import bound_log
from stages.control.natsd import NatsServer
from stages.control.processes import Processes
from stages.control.silence import HUNG_S, Silence
from stages.control.state import StateFolder
from stages.control.supervisor import Supervised
from stages.runtime.bus import Bus
from stages.runtime.loops import forever
from stages.runtime.streams import ensure_streams

_LOGS_S: Final = 10.0
_LOOK_S: Final = 1.0
_STREAMS_S: Final = 0.2


class Housework:
    """Loops that run from control's first moment to its stop."""

    def __init__(
        self, folder: StateFolder, server: NatsServer, nats: Supervised, processes: Processes
    ) -> None:
        self._folder = folder
        self._server = server
        self._nats = nats
        self._processes = processes
        self._bus: Bus | None = None
        self._silence = Silence(time.monotonic())
        self._deafness = Deafness(time.monotonic())
        self._streams_of: str | None = None
        self._loops: list[asyncio.Task[None]] = []

    def begin(self) -> None:
        """What needs no bus."""
        self._loop("bounding the logs", self._bound_logs, _LOGS_S)
        self._loop("watching nats-server", self._end_deaf, _LOOK_S)

    def guard(self, guard: Guard, changed: Callable[[], None]) -> None:
        """Keep a watchdog; `changed` is called when another was started."""

        async def look() -> None:
            if await guard.look():
                changed()

        self._loop("watching the watchdog", look, GUARD_S)

    async def attend(self, bus: Bus, beats: Beats, topology: Callable[[], Topology]) -> None:
        """The rest, once the bus is there. The streams are there when this returns."""
        self._bus = bus
        await self._renew_streams(topology())

        async def hung() -> None:
            self._end_hung(beats)

        async def streams() -> None:
            await self._renew_streams(topology())

        self._loop("looking for hung processes", hung, _LOOK_S)
        self._loop("making the streams", streams, _STREAMS_S)

    def end(self) -> None:
        """No more of it."""
        for task in self._loops:
            task.cancel()

    def _loop(self, name: str, step: Callable[[], Awaitable[object]], pause_s: float) -> None:
        task = asyncio.get_running_loop().create_task(forever(name, step, pause_s))
        self._loops.append(task)

    async def _bound_logs(self) -> None:
        for one in (self._nats, *self._processes.all()):
            bound_log(one.log_file)
        bound_log(self._folder.log("control"))

    async def _end_deaf(self) -> None:
        """Kill a nats-server that lives but answers nobody."""
        life = self._nats.life
        up = self._nats.phase == "ready" and life is not None
        heard = not up or await works(self._server.monitoring(), self._bus)
        if self._deafness.hung(time.monotonic(), heard):
            self._nats.condemn(f"no answer for {BUS_HUNG_S:.0f} s, killed")

    async def _renew_streams(self, topology: Topology) -> None:
        """After each start of nats-server: those in memory are gone with the one before."""
        if self._bus is None or self._nats.phase != "ready" or not self._bus.client.is_connected:
            return
        life = str(self._nats.child.pid) if self._nats.child is not None else None
        if life != self._streams_of:
            await ensure_streams(self._bus.js, topology)
            self._streams_of = life

    def _end_hung(self, beats: Beats) -> None:
        """Kill what is ready but has not beaten for long, so that it is started again."""
        heard = {}
        for one in self._processes.all():
            at_s = beats.heard_s(one.instance, one.life.incarnation if one.life else None)
            if one.phase == "ready" and at_s is not None:
                heard[one.instance] = at_s
        connected = self._bus is not None and self._bus.client.is_connected
        hung = self._silence.hung(time.monotonic(), connected, heard)
        for one in self._processes.all():
            if one.instance in hung:
                one.condemn(f"no beat for {HUNG_S:.0f} s, killed")
