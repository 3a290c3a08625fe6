"""The processes of the pipeline by instance: `Fleet` as control keeps it."""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence

from contracts.internal import Beat
from stages.control.beats import Beats
from stages.control.fleet import StartError
from stages.control.order import ProcessSpec
from stages.control.process import Adopted
from stages.control.silence import HUNG_S
from stages.control.state import ProcessRecord
from stages.control.supervisor import Life, Supervised
from stages.runtime.clock import now_ms


class Processes:
    """Everything beside nats-server. Implements `Fleet`."""

    def __init__(self, make: Callable[[ProcessSpec, int], Supervised], beats: Beats) -> None:
        self._make = make
        self._beats = beats
        self._all: dict[str, Supervised] = {}
        self._specs: dict[str, ProcessSpec] = {}

    def all(self) -> list[Supervised]:
        """All of them, also those that are being stopped, in the order of their start."""
        return list(self._all.values())

    def specs(self) -> Mapping[str, ProcessSpec]:
        """What is kept running, by instance name."""
        return dict(self._specs)

    def start(self, spec: ProcessSpec, generation: int) -> None:
        """Begin to keep a process running for `generation` of the topology, or a later one."""
        self._keep(spec, generation).start()

    def adopt(self, spec: ProcessSpec, record: ProcessRecord, child: Adopted) -> None:
        """Go on with a process that an earlier control started."""
        one = self._keep(spec, record.generation)
        one.restarts, one.last_error = record.restarts, record.last_error
        life = adopted_life(record, self._beats)
        age_s = (now_ms() - record.spawned_ms) / 1000
        one.adopt(child, life, max(HUNG_S, one.ready_limit_s - age_s))
        one.start()

    def _keep(self, spec: ProcessSpec, generation: int) -> Supervised:
        assert spec.instance not in self._all, f"{spec.instance} is there already"
        one = self._make(spec, generation)
        self._all[spec.instance] = one
        self._specs[spec.instance] = spec
        return one

    async def until_ready(self, instances: Collection[str]) -> None:
        """Return when all are ready. Raises `StartError` as soon as one keeps failing."""
        await until_ready([self._all[name] for name in instances])

    async def stop(self, instance: str, grace_s: float) -> None:
        """Drain and end a process within `grace_s`, and keep it running no more."""
        self._specs.pop(instance, None)
        one = self._all.get(instance)
        if one is None:
            return
        await one.stop(grace_s)
        if self._all.get(instance) is one:
            del self._all[instance]
        one.on_pid()

    def beat(self, instance: str) -> Beat | None:
        """The last beat of its present incarnation; None before the first."""
        one = self._all.get(instance)
        return None if one is None or one.life is None else self.last_beat(one)

    def last_beat(self, one: Supervised) -> Beat | None:
        """As `beat`, of a process that may be stopping."""
        return self._beats.of(one.instance, one.life.incarnation if one.life else None)


def adopted_life(record: ProcessRecord, beats: Beats) -> Life:
    """The incarnation that runs already."""
    ready = beats.ready
    incarnation = record.incarnation
    return Life(incarnation, [], {}, record.spawned_ms, lambda: ready(incarnation))


async def until_ready(processes: Sequence[Supervised]) -> None:
    """All are ready, or the first that keeps failing raises `StartError`."""
    loop = asyncio.get_running_loop()
    ready = loop.create_task(_all_ready(processes))
    failing = [loop.create_task(_faltered(one)) for one in processes]
    try:
        done, _ = await asyncio.wait({ready, *failing}, return_when=asyncio.FIRST_COMPLETED)
        done.pop().result()
    finally:
        for task in (ready, *failing):
            task.cancel()


async def _all_ready(processes: Sequence[Supervised]) -> None:
    for one in processes:
        await one.ever_ready.wait()


async def _faltered(one: Supervised) -> None:
    await one.faltered.wait()
    raise StartError(f"{one.instance} does not start: {one.last_error}")
