"""A small `Fleet` of dummy stages, each with its own connection, in the test's process."""

import asyncio
import secrets
from collections.abc import Collection, Mapping
from pathlib import Path

from nats.aio.msg import Msg

from contracts import subjects
from contracts.errors import HeadraceError
from contracts.internal import Beat
from stages.control.fleet import StartError
from stages.control.order import ProcessSpec
from stages.runtime.bus import Bus
from stages.runtime.clock import now_ms
from stages.runtime.launch import BusAddress, Launch
from stages.runtime.live_topology import read_generation
from stages.runtime.loops import forever
from stages.runtime.stage import BeatLoop, Context, follow_topology
from tests.support.dummy_stage import Dummy
from tests.support.waiting import LIMIT_S

LOOK_S = 0.02


class DummyFleet:
    """What ends stays ended; `wish` says what an instance refuses (tests/support/dummy_stage.py)."""

    def __init__(self, bus: Bus, address: BusAddress, folder: Path) -> None:
        self._bus = bus
        self._address = address
        self._folder = folder
        self._specs: dict[str, ProcessSpec] = {}
        self._lives: dict[str, asyncio.Task[None]] = {}
        self._incarnations: dict[str, str] = {}
        self._beats: dict[str, Beat] = {}
        self.stopped: list[str] = []
        (folder / "dummy").mkdir()

    async def listen(self) -> None:
        """Hear the beats."""
        await self._bus.listen(subjects.BEAT_ALL, self._on_beat)

    def _on_beat(self, msg: Msg) -> None:
        beat = Beat.model_validate_json(msg.data)
        self._beats[beat.incarnation] = beat

    def wish(self, instance: str, step: str, text: str | None) -> None:
        """A step of an instance fails with this text; None = no more."""
        path = self._folder / "dummy" / f"{instance}.{step}"
        if text is None:
            path.unlink()
        else:
            path.write_text(text)

    def incarnations(self) -> dict[str, str]:
        """Of all that run."""
        return {name: self._incarnations[name] for name in self._specs}

    def specs(self) -> Mapping[str, ProcessSpec]:
        return dict(self._specs)

    def start(self, spec: ProcessSpec, generation: int) -> None:
        assert spec.instance not in self._lives, spec.instance
        self._specs[spec.instance] = spec
        incarnation = f"{spec.instance}-{secrets.token_hex(2)}"
        self._incarnations[spec.instance] = incarnation
        launch = Launch(
            stage=spec.stage,
            instance=spec.instance,
            incarnation=incarnation,
            bus=self._address,
            state=self._folder,
            spawned_ms=now_ms(),
            pool=spec.pool,
            generation=generation,
        )
        self._lives[spec.instance] = asyncio.get_running_loop().create_task(self._live(launch))

    async def _live(self, launch: Launch) -> None:
        """As `stages.runtime.stage.live`, beating faster."""
        bus = await Bus.connect(launch.bus, launch.incarnation)
        try:
            current = await read_generation(bus, launch.generation)
            context = Context(launch, bus, current.topology, current.generation)
            dummy = Dummy(context)
            await dummy.start()
            beats = BeatLoop(context, dummy)
            beats.live = await follow_topology(context, current, dummy)
            beats.ready_ms = now_ms()
            await asyncio.gather(beats.live.run(), forever("beats", beats.send, LOOK_S))
        finally:
            await bus.close()

    async def until_ready(self, instances: Collection[str]) -> None:
        async with asyncio.timeout(LIMIT_S):
            for name in instances:
                while not ((beat := self.beat(name)) and beat.ready):
                    if self._lives[name].done():
                        raise StartError(f"{name} does not start: {self._lives[name].exception()}")
                    await asyncio.sleep(LOOK_S)

    async def stop(self, instance: str, grace_s: float) -> None:
        life = self._lives.pop(instance)
        life.cancel()
        await asyncio.wait({life})
        if not life.cancelled():
            assert isinstance(life.exception(), HeadraceError), life.exception()
        del self._specs[instance]
        self.stopped.append(instance)

    def beat(self, instance: str) -> Beat | None:
        return self._beats.get(self._incarnations.get(instance, ""))

    async def close(self) -> None:
        """End all."""
        for name in list(self._lives):
            await self.stop(name, 0)
