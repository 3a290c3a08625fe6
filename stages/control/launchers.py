"""How each kind of process is started anew: nats-server, a stage, an executor."""

import asyncio
import secrets
import sys
from collections.abc import Mapping

from stages.control.beats import Beats
from stages.control.lost import ExecutorTime
from stages.control.natsd import NatsServer
from stages.control.order import BUS, ProcessSpec
from stages.control.state import StateFolder
from stages.control.supervisor import Life
from stages.runtime.clock import now_ms
from stages.runtime.launch import BusAddress, Launch

_NO_ENV: Mapping[str, str] = {}
_LAST_REPORT_S = 0.1  # what an executor published just before its end may still be on its way


class NatsLauncher:
    """The embedded nats-server."""

    def __init__(self, server: NatsServer) -> None:
        self._server = server

    def life(self, spawned_ms: float) -> Life:
        """The one that runs already."""
        return Life(BUS, [], _NO_ENV, spawned_ms, self._server.ready)

    def next_life(self) -> Life:
        """Write the config again."""
        return Life(BUS, self._server.command(), _NO_ENV, now_ms(), self._server.ready)

    async def ended(self, life: Life, code: int | None) -> None:
        """Nothing to settle: what was stored is on disk."""


class StageLauncher:
    """A stage or executor, started as `python -m <module> --launch FILE`."""

    def __init__(
        self,
        spec: ProcessSpec,
        folder: StateFolder,
        bus: BusAddress,
        beats: Beats,
        executors: ExecutorTime,
        generation: int = 0,
    ) -> None:
        self._spec = spec
        self._folder = folder
        self._bus = bus
        self._beats = beats
        self._executors = executors
        self._generation = generation

    def next_life(self) -> Life:
        """Draw an incarnation and write its launch file."""
        spec = self._spec
        incarnation = f"{spec.instance}-{secrets.token_hex(2)}"
        launch = Launch(
            stage=spec.stage,
            instance=spec.instance,
            incarnation=incarnation,
            bus=self._bus,
            state=self._folder.root,
            spawned_ms=now_ms(),
            pool=spec.pool,
            generation=self._generation,
        )
        path = self._folder.launch(spec.instance)
        launch.write(path)
        # -P: a folder named `stages` where the command was typed must not stand in for ours.
        command = [sys.executable, "-P", "-m", spec.module, "--launch", str(path)]
        ready = self._beats.ready
        return Life(incarnation, command, spec.env, launch.spawned_ms, lambda: ready(incarnation))

    async def ended(self, life: Life, code: int | None) -> None:
        """Book what an executor did not report itself."""
        if self._spec.pool is None:
            return
        exit_ms = now_ms()
        await asyncio.sleep(_LAST_REPORT_S)
        beat = self._beats.of(self._spec.instance, life.incarnation)
        await self._executors.close(
            life.incarnation, self._spec.pool, life.spawned_ms, exit_ms, code == 0, beat
        )
