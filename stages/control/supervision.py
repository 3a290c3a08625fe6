"""What every supervised process of one pipeline has in common: gate, log, launcher, who is told."""

import asyncio
import os
from collections.abc import Callable

from stages.control.beats import Beats
from stages.control.launchers import NatsLauncher, StageLauncher
from stages.control.lost import ExecutorTime
from stages.control.natsd import NatsServer
from stages.control.order import BUS, ProcessSpec
from stages.control.state import StateFolder
from stages.control.supervisor import Change, Supervised
from stages.runtime.limits import EXECUTOR_READY_S, READY_S


class Supervision:
    """Makes them. `executors` is set before the first stage is made."""

    def __init__(
        self,
        folder: StateFolder,
        server: NatsServer,
        beats: Beats,
        on_change: Callable[[Change], None],
        on_pid: Callable[[], None],
    ) -> None:
        self._folder = folder
        self._server = server
        self._beats = beats
        self._on_change = on_change
        self._on_pid = on_pid
        self._gate = asyncio.Semaphore(max(2, os.cpu_count() or 2))
        self.executors: ExecutorTime | None = None

    def bus(self, launcher: NatsLauncher) -> Supervised:
        """nats-server."""
        return Supervised(
            stage=BUS,
            instance=BUS,
            launcher=launcher,
            log_file=self._folder.log(BUS),
            gate=self._gate,
            on_change=self._on_change,
            on_pid=self._on_pid,
        )

    def process(self, spec: ProcessSpec, generation: int) -> Supervised:
        """A stage or an executor that starts with this generation of the topology."""
        assert self.executors is not None
        address = self._server.address_of(spec.stage)
        launcher = StageLauncher(
            spec, self._folder, address, self._beats, self.executors, generation
        )
        return Supervised(
            stage=spec.stage,
            instance=spec.instance,
            launcher=launcher,
            log_file=self._folder.log(spec.instance),
            gate=self._gate,
            on_change=self._on_change,
            on_pid=self._on_pid,
            pool=spec.pool,
            spec=spec,
            generation=generation,
            ready_limit_s=READY_S if spec.pool is None else EXECUTOR_READY_S,
        )
