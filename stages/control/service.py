"""Control: nats-server, then every process of the topology; watched until it is told to stop."""

import asyncio
import contextlib
import hashlib
import logging
import os
import time
from pathlib import Path
from typing import Any, Final

import nats.errors
import nats.js.errors
from nats.aio.msg import Msg
from nats.js.api import StorageType

from contracts import subjects
from contracts.lifecycle import Generation
from contracts.status import Addresses, StatusCall, StatusReport
from contracts.topology import Topology
from stages.control.beats import Beats
from stages.control.fleet import StartError
from stages.control.launchers import NatsLauncher, StageLauncher
from stages.control.logs import bound_log
from stages.control.lost import ExecutorTime
from stages.control.natsd import NatsServer
from stages.control.order import BUS, EXECUTOR, STOP_S, ProcessSpec, stop_phases
from stages.control.process import identify
from stages.control.progress import Progress
from stages.control.silence import HUNG_S, Silence
from stages.control.state import ProcessRecord, RunState, StateFolder
from stages.control.status import conservation, problems, process_status
from stages.control.supervisor import Change, Supervised
from stages.runtime.bus import Bus
from stages.runtime.clock import now_ms
from stages.runtime.launch import write_private
from stages.runtime.limits import EXECUTOR_READY_S, READY_S
from stages.runtime.loops import forever
from stages.runtime.streams import ensure_streams

HISTORY: Final = 64  # generations of the topology kept for a way back
_LOGS_S: Final = 10.0
_BUS_S: Final = 10.0
_LEAST_S: Final = 0.3
_LOOK_S: Final = 1.0

log = logging.getLogger("headrace.control")


class Control:
    """One running pipeline."""

    def __init__(
        self,
        topology: Topology,
        file: Path,
        folder: StateFolder,
        specs: list[ProcessSpec],
        progress: Progress,
    ) -> None:
        self._topology = topology
        self._file = file
        self._folder = folder
        self._specs = specs
        self._progress = progress
        self._began_s = time.monotonic()
        self._started_ms = now_ms()
        self._ready_s: float | None = None
        self._hash = hashlib.sha256(file.read_bytes()).hexdigest()
        self._gate = asyncio.Semaphore(max(2, os.cpu_count() or 2))
        self._server = NatsServer(folder, topology)
        self._beats = Beats()
        self._generation = 0
        self._nats = self._supervised(BUS, BUS, NatsLauncher(self._server))
        self._processes: list[Supervised] = []
        self._bus: Bus | None = None
        self._me = identify(os.getpid())
        self._silence = Silence(time.monotonic())
        self._housework: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Bring everything up; returns when all are ready. Raises `StartError`."""
        self._nats.start()
        await self._until_ready([self._nats])
        self._bus = bus = await Bus.connect(self._server.address, "control")
        operator = self._server.address_of("operator")
        write_private(self._folder.bus_file, operator.model_dump_json())
        self._generation = await publish_topology(bus, self._topology, self._file.read_text())
        await ensure_streams(bus.js, self._topology)
        await bus.listen(subjects.BEAT_ALL, self._beats.on_beat)
        executors = ExecutorTime(bus, self._topology, self._generation)
        await executors.start()
        await bus.serve(subjects.STATUS, StatusCall, self._on_status)
        for spec in self._specs:
            address = self._server.address_of(spec.stage)
            launcher = StageLauncher(spec, self._folder, address, self._beats, executors)
            self._processes.append(self._supervised(spec.stage, spec.instance, launcher, spec.pool))
        loop = asyncio.get_running_loop()
        self._housework = [
            loop.create_task(forever("bounding the logs", self._bound_logs, _LOGS_S)),
            loop.create_task(forever("looking for hung processes", self._end_hung, _LOOK_S)),
        ]
        for one in self._processes:
            one.start()
        await self._until_ready(self._processes)
        self._ready_s = time.monotonic() - self._began_s
        self._progress.tell("up", ready_s=self._ready_s, **self._addresses().model_dump())

    def _supervised(
        self, stage: str, instance: str, launcher: Any, pool: str | None = None
    ) -> Supervised:
        return Supervised(
            stage=stage,
            instance=instance,
            launcher=launcher,
            log_file=self._folder.log(instance),
            gate=self._gate,
            on_change=self._on_change,
            on_pid=self._write_state,
            pool=pool,
            ready_limit_s=READY_S if pool is None else EXECUTOR_READY_S,
        )

    async def _until_ready(self, processes: list[Supervised]) -> None:
        """All are ready, or the first that keeps failing ends the start."""
        loop = asyncio.get_running_loop()
        ready = loop.create_task(_all_ready(processes))
        failing = [loop.create_task(_faltered(one)) for one in processes]
        try:
            done, _ = await asyncio.wait({ready, *failing}, return_when=asyncio.FIRST_COMPLETED)
            done.pop().result()
        finally:
            for task in (ready, *failing):
                task.cancel()

    def _on_change(self, change: Change) -> None:
        self._progress.tell(
            change.event, instance=change.instance, ms=round(change.ms), reason=change.reason
        )

    def _write_state(self) -> None:
        """Called at once after each spawn, so that a killed control leaves nobody unknown."""
        assert self._me is not None
        running = [
            ProcessRecord(stage=one.stage, instance=one.instance, identity=one.child.identity)
            for one in (self._nats, *self._processes)
            if one.child is not None and one.child.identity is not None
        ]
        self._folder.write(
            RunState(
                control=self._me,
                processes=running,
                topology_file=str(self._file),
                config_hash=self._hash,
                bus_url=self._server.address.url,
                bus_port=self._topology.bus.port,
                grpc=self._topology.stages.egress.grpc,
                started_ms=self._started_ms,
            )
        )

    def _addresses(self) -> Addresses:
        return Addresses(
            nats=self._server.address.url,
            grpc=self._topology.stages.egress.grpc,
            monitoring=self._server.monitoring(),
        )

    async def _on_status(self, _: StatusCall, __: Msg) -> StatusReport:
        return self.status()

    def status(self) -> StatusReport:
        """Everything as it is now."""
        at = now_ms()
        found = [self._status_of(one, at) for one in self._processes]
        bus = self._status_of(self._nats, at)
        law = conservation([one for one in found if one.stage == "queueing"])
        wrong = problems([bus, *found], law)
        return StatusReport(
            healthy=not wrong,
            problems=wrong,
            generation=self._generation,
            topology_file=str(self._file),
            config_hash=self._hash,
            pid=os.getpid(),
            started_ms=self._started_ms,
            sent_ms=at,
            ready_s=self._ready_s,
            addresses=self._addresses(),
            conservation=law,
            bus=bus,
            stages=[one for one in found if one.stage != EXECUTOR],
            executors=[one for one in found if one.stage == EXECUTOR],
        )

    def _status_of(self, one: Supervised, at: float) -> Any:
        beat = self._beats.of(one.instance, one.life.incarnation if one.life else None)
        return process_status(one, beat, self._beats.silent(one.instance), at)

    async def _bound_logs(self) -> None:
        for one in (self._nats, *self._processes):
            bound_log(one.log_file)

    async def _end_hung(self) -> None:
        """Kill what is ready but has not beaten for long, so that it is started again."""
        heard = {}
        for one in self._processes:
            at_s = self._beats.heard_s(one.instance, one.life.incarnation if one.life else None)
            if one.phase == "ready" and at_s is not None:
                heard[one.instance] = at_s
        connected = self._bus is not None and self._bus.client.is_connected
        hung = self._silence.hung(time.monotonic(), connected, heard)
        for one in self._processes:
            if one.instance in hung:
                one.condemn(f"no beat for {HUNG_S:.0f} s, killed")

    async def stop(self) -> None:
        """End everything in order, within `STOP_S`."""
        self._progress.tell("stopping")
        deadline = time.monotonic() + STOP_S
        for one in self._processes:
            one.hold()
        by_name = {one.instance: one for one in self._processes}
        for names, seconds in stop_phases(self._specs):
            group = [by_name[name] for name in names if name in by_name]
            grace_s = max(_LEAST_S, min(seconds, deadline - time.monotonic() - 1.0))
            await asyncio.gather(*(one.stop(grace_s) for one in group))
        for task in self._housework:
            task.cancel()
        if self._bus is not None:
            await self._bus.close()
        await self._nats.stop(max(_LEAST_S, deadline - time.monotonic()))
        self._folder.clear()
        self._progress.tell("down")

    def kill(self) -> None:
        """End everything at once: the person has asked a second time."""
        for one in (*self._processes, self._nats):
            one.kill()


async def _all_ready(processes: list[Supervised]) -> None:
    for one in processes:
        await one.ever_ready.wait()


async def _faltered(one: Supervised) -> None:
    await one.faltered.wait()
    raise StartError(f"{one.instance} does not start: {one.last_error}")


async def publish_topology(bus: Bus, topology: Topology, text: str) -> int:
    """Store the topology; returns its generation, which grows only when it changed."""
    bucket = await bus.js.create_key_value(
        bucket=subjects.TOPOLOGY_BUCKET, history=HISTORY, storage=StorageType.FILE
    )
    last = 0
    with contextlib.suppress(nats.js.errors.KeyNotFoundError):
        entry = await bucket.get(subjects.TOPOLOGY_SPEC)
        found = Generation.model_validate_json(entry.value or b"")
        if found.topology == topology:
            return found.generation
        last = found.generation
    generation = Generation(
        generation=last + 1, topology=topology, text=text, reason="start", applied_ms=now_ms()
    )
    await bucket.put(subjects.TOPOLOGY_SPEC, generation.model_dump_json().encode())
    return generation.generation
