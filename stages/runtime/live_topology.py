"""The running topology as a process sees it: read at its start, followed while it lives."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

import nats.errors
import nats.js.errors
from nats.aio.msg import Msg
from pydantic import ValidationError

from contracts import subjects
from contracts.lifecycle import Generation
from contracts.topology import Topology
from stages.runtime.bus import Bus
from stages.runtime.loops import forever

LOOK_S: Final = 5.0  # a word that got lost (the bus was away) is made good by a look at the bucket
AGAIN_S: Final = 1.0  # after a generation that could not be taken over
TAKE_S: Final = 60.0

Take = Callable[[Generation], Awaitable[None]]

log = logging.getLogger("headrace.topology")


async def read_generation(bus: Bus, least: int = 0) -> Generation:
    """The generation that serves; the candidate where a process is started for a later one.

    Raises `nats.js.errors.Error` when nothing is stored.
    """
    spec = await _read(bus, subjects.TOPOLOGY_SPEC)
    if spec is not None and spec.generation >= least:
        return spec
    candidate = await _read(bus, subjects.TOPOLOGY_CANDIDATE)
    if candidate is not None and candidate.generation >= least:
        return candidate
    if spec is None:
        raise nats.js.errors.KeyNotFoundError
    return spec  # the candidate was withdrawn meanwhile: whoever started us will end us


async def _read(bus: Bus, key: str) -> Generation | None:
    bucket = await bus.js.key_value(subjects.TOPOLOGY_BUCKET)
    try:
        entry = await bucket.get(key)
    except nats.js.errors.KeyNotFoundError:
        return None
    return Generation.model_validate_json(entry.value or b"")


class LiveTopology:
    """Hands every new generation of `spec` to `take`, in order, one at a time.

    A `take` that fails is tried again at the next look; `problem` says so meanwhile.
    """

    def __init__(self, bus: Bus, current: Generation, take: Take) -> None:
        self._bus = bus
        self._take = take
        self.current = current
        self.problem: str | None = None
        self._changed = asyncio.Event()
        self._changed.set()  # what came between the first reading and the subscription
        self._turn = asyncio.Lock()

    async def start(self) -> None:
        """Subscribe, and look now and then."""
        subject = f"$KV.{subjects.TOPOLOGY_BUCKET}.{subjects.TOPOLOGY_SPEC}"
        await self._bus.listen(subject, self._on_change)

    def _on_change(self, _: Msg) -> None:
        self._changed.set()

    async def run(self) -> None:
        """For ever (cancel to end)."""
        await forever("following the topology", self._round, 0.0)

    async def _round(self) -> None:
        try:
            async with asyncio.timeout(LOOK_S if self.problem is None else AGAIN_S):
                await self._changed.wait()
        except TimeoutError:
            if not self._bus.client.is_connected:
                return
        self._changed.clear()
        await self.look()

    async def prepare(
        self, load: Callable[[Topology], Awaitable[None]], wanted: Generation
    ) -> None:
        """Load for a generation that may come, never while another is being taken over."""
        async with self._turn:
            await load(wanted.topology)

    async def look(self) -> None:
        """Take over what is stored now, if it is newer."""
        try:
            found = await _read(self._bus, subjects.TOPOLOGY_SPEC)
        except (OSError, TimeoutError, nats.errors.Error, ValidationError) as error:
            log.warning("the topology cannot be read now: %r", error)
            return
        if found is None or found.generation <= self.current.generation:
            return
        try:
            async with self._turn, asyncio.timeout(TAKE_S):
                await self._take(found)
        except Exception as error:  # noqa: BLE001 (told by the beats and logged)
            self._fail(found.generation, error)
            return
        self.problem = None
        self.current = found
        log.info("serves generation %d", found.generation)

    def _fail(self, generation: int, error: Exception) -> None:
        said = str(error) or f"{type(error).__name__} after at most {TAKE_S:.0f} s"
        problem = f"generation {generation} is not taken over: {said}"
        if problem != self.problem:  # once, not every second
            log.error(problem, exc_info=error)
        self.problem = problem
