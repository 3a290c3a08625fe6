"""Control: nats-server, then every process of the topology; watched until it is told to stop."""

import asyncio
import contextlib
import hashlib
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import nats.errors
from nats.aio.msg import Msg

from contracts import subjects
from contracts.errors import HeadraceError
from contracts.lifecycle import Actuals, Generation
from contracts.status import Addresses, StatusCall, StatusReport
from contracts.topology import Topology
from stages.control.adoption import Found
from stages.control.beats import Beats
from stages.control.changes import Changes
from stages.control.drift import Drift
from stages.control.fleet import StartError
from stages.control.generations import Generations
from stages.control.guard import Guard
from stages.control.housework import Housework
from stages.control.inheritance import Inheritance
from stages.control.launchers import NatsLauncher
from stages.control.lost import ExecutorTime
from stages.control.machine import check_machine
from stages.control.natsd import NatsServer
from stages.control.order import STOP_S, ProcessSpec, plan, reconcile, stop_phases
from stages.control.process import identify
from stages.control.processes import Processes, until_ready
from stages.control.progress import Progress
from stages.control.report import Facts, Reporter
from stages.control.state import RunState, StateFolder
from stages.control.supervision import Supervision
from stages.control.supervisor import Change, Supervised
from stages.runtime.bus import Bus
from stages.runtime.clock import now_ms
from stages.runtime.launch import write_private
from stages.runtime.limits import READY_S
from stages.runtime.streams import ensure_streams
from stages.runtime.topology_file import Report

_LEAST_S: Final = 0.3
_AGAIN_S: Final = 0.2

Planner = Callable[[Topology, Actuals], list[ProcessSpec]]

log = logging.getLogger("headrace.control")


class Control:
    """One running pipeline.

    `begin` is the generation to start with (its number 0: not stored yet). `found` is what an earlier
    control left, to be taken over; None at a fresh start.
    """

    def __init__(
        self,
        begin: Generation,
        file: Path,
        folder: StateFolder,
        progress: Progress,
        planner: Planner = plan,
        found: Found | None = None,
        guard: Guard | None = None,
    ) -> None:
        state = found.state if found else None
        self.current = begin
        self._folder = folder
        self._planner = planner
        self._progress = progress
        self._began_s = time.monotonic()
        self._started_ms = state.started_ms if state else now_ms()
        self._ready_s = state.ready_s if state else None
        self.was_up = self._ready_s is not None
        self._inheritance = Inheritance(found) if found else None
        self._guard = guard
        self._drift = Drift(file)
        self._server = NatsServer(folder, begin.topology)
        self._beats = Beats()
        self._launcher = NatsLauncher(self._server)
        self._supervision = Supervision(
            folder, self._server, self._beats, self._on_change, self._write_state
        )
        self._nats = self._supervision.bus(self._launcher)
        self.processes = Processes(self._supervision.process, self._beats)
        self._reporter = Reporter(folder, self._beats, self._drift, guard)
        self._housework = Housework(folder, self._server, self._nats, self.processes)
        self._bus: Bus | None = None
        self._executors: ExecutorTime | None = None
        self._generations: Generations | None = None
        self._changes: Changes | None = None
        self._me = identify(os.getpid())

    async def start(self) -> None:
        """Bring everything up; returns when all are ready. Raises `StartError`.

        After an earlier control it takes over what runs and starts what is missing, and does not
        give up on anything that was up before.
        """
        self._write_state()
        self._housework.begin()
        if self._guard is not None:
            self._housework.guard(self._guard, self._write_state)
        if not (self._inheritance and self._inheritance.take_bus(self._nats, self._launcher)):
            self._nats.start()
        await self._until_ready([self._nats])
        self._bus = bus = await self._connect()
        operator = self._server.address_of("operator")
        write_private(self._folder.bus_file, operator.model_dump_json())
        self._generations = Generations(bus)
        self._keep(await self._serving(self._generations))
        await self._housework.attend(bus, self._beats, lambda: self.current.topology)
        executors = ExecutorTime(bus, self.current.topology, self.current.generation)
        self._executors = self._supervision.executors = executors
        await executors.start()
        candidate = await self._generations.candidate()
        if candidate is not None:  # a change was under way when an earlier control ended
            self.expect(candidate.generation)
        await bus.listen(subjects.BEAT_ALL, self._beats.on_beat)
        await bus.serve(subjects.STATUS, StatusCall, self._on_status)
        await self._start_processes(self._generations, executors)
        self._changes = changes = Changes(
            bus, self._generations, self.processes, self._planner, self
        )
        if not self.was_up:  # what was up before may need a change to get ready
            await self._until_ready(self.processes.all())
        await changes.start(self._watched(), self.current.text, self._on_watch)
        await self._until_ready(self.processes.all())
        if self._ready_s is None:
            self._ready_s = time.monotonic() - self._began_s
            self._write_state()
        self._progress.tell("up", ready_s=self._ready_s, **self._addresses().model_dump())

    async def _start_processes(self, generations: Generations, executors: ExecutorTime) -> None:
        """Those that run are taken over; surplus ones are ended by whoever changes the topology."""
        if self._inheritance is not None:
            await self._inheritance.take(self.processes, self._plan(Actuals()), self._progress)
            self._inheritance.settle(executors, self._write_state)
        wanted = self._plan(await generations.actuals())
        for spec in reconcile(wanted, self.processes.specs().values()).start:
            self.processes.start(spec, self.current.generation)

    def _plan(self, actuals: Actuals) -> list[ProcessSpec]:
        return self._planner(self.current.topology, actuals)

    async def _serving(self, generations: Generations) -> Generation:
        """What is stored, if it is ours to go on with; else ours, stored as the next one."""
        begin = self.current
        stored = await generations.spec() if begin.generation else None
        if stored is not None and stored.generation.generation >= begin.generation:
            return stored.generation
        return await generations.begin(begin.topology, begin.text)

    def expect(self, candidate: Generation) -> None:
        """Processes are started for a generation that may come."""
        if self._executors is not None:
            self._executors.expect(candidate.topology)

    async def take(self, generation: Generation) -> None:
        """A generation serves from now on: it has been stored."""
        self._keep(generation)
        if self._executors is not None:
            self._executors.take_over(generation.topology, generation.generation)
        if self._bus is not None:
            await ensure_streams(self._bus.js, generation.topology)

    def check(self, report: Report) -> None:
        """What this machine lacks for a changed topology."""
        check_machine(report, self._folder.root, self._folder.read())

    def _watched(self) -> Path | None:
        return self._drift.file if self._folder.watch.exists() else None

    def _on_watch(self, event: str, text: str) -> None:
        self._progress.tell(event, reason=text)

    def _keep(self, generation: Generation) -> None:
        self.current = generation
        self._folder.write_generation(generation)
        self._write_state()

    async def _connect(self) -> Bus:
        """Raises `StartError` when the server does not let us in for long, unless it did before."""
        deadline = time.monotonic() + READY_S
        while True:
            try:
                return await Bus.connect(self._server.address, "control")
            except (OSError, TimeoutError, nats.errors.Error) as error:
                log.warning("nats-server does not let control in yet: %r", error)
                if time.monotonic() > deadline and not self.was_up:
                    raise StartError(f"no connection to nats-server: {error!r}") from None
            await asyncio.sleep(_AGAIN_S)

    async def _until_ready(self, processes: list[Supervised]) -> None:
        """A pipeline that was up before is not ended because one of its processes keeps failing."""
        if not self.was_up:
            await until_ready(processes)
            return
        for one in processes:
            await one.ever_ready.wait()

    def _on_change(self, change: Change) -> None:
        self._progress.tell(
            change.event, instance=change.instance, ms=round(change.ms), reason=change.reason
        )

    def _write_state(self) -> None:
        """Called at once after each spawn, so that a killed control leaves nobody unknown."""
        assert self._me is not None
        records = [one.record() for one in (self._nats, *self.processes.all())]
        inherited = self._inheritance.records if self._inheritance else []
        topology = self.current.topology
        self._folder.write(
            RunState(
                control=self._me,
                processes=[*(one for one in records if one is not None), *inherited],
                topology_file=str(self._drift.file),
                config_hash=self._hash(),
                bus_url=self._server.address.url,
                bus_port=topology.bus.port,
                grpc=topology.stages.egress.grpc,
                http=topology.stages.egress.http,
                started_ms=self._started_ms,
                ready_s=self._ready_s,
                watchdogs=self._guard.started if self._guard else 0,
            )
        )

    def _hash(self) -> str:
        return hashlib.sha256(self.current.text.encode()).hexdigest()

    def _addresses(self) -> Addresses:
        return Addresses(
            nats=self._server.address.url,
            grpc=self.current.topology.stages.egress.grpc,
            http=self.current.topology.stages.egress.http,
            monitoring=self._server.monitoring(),
        )

    async def _on_status(self, _: StatusCall, __: Msg) -> StatusReport:
        if self._bus is not None:
            await self._reporter.look(self._bus, self.current.topology)
        astray = []
        if self._changes is not None:
            # The bus may be away: the rest is told all the same.
            with contextlib.suppress(HeadraceError):
                astray = await self._changes.astray()
        return self.status().model_copy(update={"astray": astray})

    def status(self) -> StatusReport:
        """Everything as it is now."""
        return self._reporter.report(
            Facts(
                current=self.current,
                change=self._changes.doing if self._changes else None,
                problem=self._changes.problem if self._changes else None,
                nats=self._nats,
                processes=self.processes.all(),
                addresses=self._addresses(),
                started_ms=self._started_ms,
                ready_s=self._ready_s,
                config_hash=self._hash(),
            )
        )

    async def stop(self) -> None:
        """End everything in order, within `STOP_S`."""
        self._progress.tell("stopping")
        if self._guard is not None:
            self._guard.stop()
        if self._changes is not None:
            await self._changes.stop()
        deadline = time.monotonic() + STOP_S
        all_ = self.processes.all()
        for one in all_:
            one.hold()
        by_name = {one.instance: one for one in all_}
        for names, seconds in stop_phases([one.spec for one in all_ if one.spec is not None]):
            grace_s = max(_LEAST_S, min(seconds, deadline - time.monotonic() - 1.0))
            await asyncio.gather(*(by_name[name].stop(grace_s) for name in names))
        self._housework.end()
        if self._bus is not None:
            await self._bus.close()
        await self._nats.stop(max(_LEAST_S, deadline - time.monotonic()))
        self._folder.clear()
        self._progress.tell("down")

    def kill(self) -> None:
        """End everything at once: the person has asked a second time."""
        for one in (*self.processes.all(), self._nats):
            one.kill()
