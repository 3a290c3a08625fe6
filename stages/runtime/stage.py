"""The life of a stage process: connect, read the topology, serve, beat, drain."""

import asyncio
import contextlib
import gc
import logging
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

import nats.micro
import uvloop
from nats.aio.msg import Msg

from contracts import subjects
from contracts.errors import ErrorCode, HeadraceError
from contracts.internal import Beat, Done
from contracts.lifecycle import Generation, PrepareCall
from contracts.topology import Topology
from stages.runtime.bus import Bus
from stages.runtime.clock import now_ms
from stages.runtime.launch import Launch, read_launch
from stages.runtime.limits import DRAIN_S, END_S
from stages.runtime.live_topology import LiveTopology, read_generation
from stages.runtime.loops import forever

BEAT_S: Final = 0.5
VERSION: Final = "0.1.0"

log = logging.getLogger("headrace.stage")


@dataclass
class Context:
    """What a service gets: who it is, the bus, and the topology that it serves now."""

    launch: Launch
    bus: Bus
    topology: Topology
    generation: int


class Service(Protocol):
    """The part of a stage that differs from the others."""

    async def start(self) -> None:
        """Subscribe; return when ready to serve."""

    async def prepare(self, topology: Topology) -> None:
        """Load what `topology` needs beyond the present one; raise what stands in its way.

        Nothing that callers notice changes. It may never be followed by `reconfigure`, which may also
        come without it (a process that was just starting is not asked).
        """

    async def reconfigure(self, topology: Topology, generation: int) -> None:
        """Serve `topology` from now on; what runs goes on. Raises only for what can be tried again."""

    async def drain(self) -> None:
        """Take nothing new and finish what runs; bounded by the caller."""

    def counters(self) -> dict[str, float]:
        """Figures since start, for beats and `headrace status`."""

    def detail(self) -> dict[str, str]:
        """What else an operator wants to see."""


class BeatLoop:
    """Publishes the stage's beat twice a second until stopped."""

    def __init__(self, context: Context, service: Service) -> None:
        self._context = context
        self._service = service
        self.live: LiveTopology | None = None
        self.ready_ms: float | None = None
        self.draining = False

    async def run(self) -> None:
        """Beat for ever (cancel to end), also when one could not be sent."""
        await forever("beats", self.send, BEAT_S)

    async def send(self) -> None:
        """One beat now."""
        launch = self._context.launch
        beat = Beat(
            stage=launch.stage,
            instance=launch.instance,
            incarnation=launch.incarnation,
            pid=os.getpid(),
            generation=self._context.generation,
            ready=self.ready_ms is not None and not self.draining,
            draining=self.draining,
            spawned_ms=launch.spawned_ms,
            ready_ms=self.ready_ms,
            sent_ms=now_ms(),
            counters=self._service.counters(),
            detail=self._service.detail(),
            problem=self.live.problem if self.live is not None else None,
        )
        await self._context.bus.publish(subjects.beat(launch.stage, launch.instance), beat)


async def follow_topology(context: Context, current: Generation, service: Service) -> LiveTopology:
    """Keep a service on the generation that serves, and answer whether it could serve another."""

    async def take(found: Generation) -> None:
        await service.reconfigure(found.topology, found.generation)
        context.topology, context.generation = found.topology, found.generation

    async def prepare(call: PrepareCall, _: Msg) -> Done:
        try:
            await following.prepare(service.prepare, call.generation)
        except HeadraceError:
            raise
        except Exception as error:  # whoever changes the topology is told why it cannot be
            log.exception("generation %d cannot be served", call.generation.generation)
            text = f"{type(error).__name__}: {error}"
            raise HeadraceError(ErrorCode.INTERNAL, text) from error
        return Done(ok=True)

    following = LiveTopology(context.bus, current, take)
    await following.start()
    await context.bus.serve(subjects.prepare(context.launch.incarnation), PrepareCall, prepare)
    return following


async def live(launch: Launch, factory: Callable[[Context], Service]) -> None:
    """Run one service until SIGTERM or SIGINT, then drain it."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    bus = await Bus.connect(launch.bus, launch.incarnation)
    current = await read_generation(bus, launch.generation)
    context = Context(launch, bus, current.topology, current.generation)
    service = factory(context)
    beats = BeatLoop(context, service)
    await service.start()
    beats.live = await follow_topology(context, current, service)
    await nats.micro.add_service(
        bus.client, name=f"headrace-{launch.stage}", version=VERSION, description=launch.instance
    )
    await bus.flush()
    gc.collect()
    gc.freeze()  # what lives from here to the end need not be looked at in every collection
    beats.ready_ms = now_ms()
    log.info("%s ready after %.0f ms", launch.instance, beats.ready_ms - launch.spawned_ms)
    beating = loop.create_task(beats.run())
    following = loop.create_task(beats.live.run())
    await stop.wait()
    beats.draining = True
    following.cancel()
    try:
        with contextlib.suppress(Exception):  # the loop says it again, or logs why it cannot
            await beats.send()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(service.drain(), DRAIN_S[launch.stage])
    finally:  # what was published so far still goes out
        beating.cancel()
        await bus.settle(END_S / 2)
        await bus.close()
    log.info("%s stopped", launch.instance)


def main(module: str, factory: Callable[[Context], Service]) -> None:
    """Entry point of `python -m <module> --launch FILE`."""
    launch = read_launch(module)
    logging.basicConfig(
        stream=sys.stderr,
        level=logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s %(message)s",
    )
    uvloop.run(live(launch, factory))
