"""The answer to `headrace status`: everything that control knows, at one moment."""

import json
import os
import time
from dataclasses import dataclass
from typing import Any

import nats.errors
import nats.js.errors
from pydantic import ValidationError

from contracts import subjects
from contracts.internal import OwnerRecord
from contracts.lifecycle import Generation
from contracts.status import Addresses, ControlStatus, ProcessStatus, QueueStatus, StatusReport
from contracts.topology import Topology
from stages.control.backoff import HEALTHY_S
from stages.control.beats import Beats
from stages.control.drift import Drift
from stages.control.guard import Guard
from stages.control.order import EXECUTOR
from stages.control.state import StateFolder
from stages.control.status import conservation, problems, process_status
from stages.control.supervisor import Supervised
from stages.runtime.bus import Bus
from stages.runtime.clock import now_ms


@dataclass(frozen=True)
class Facts:
    """What control hands in for one report."""

    current: Generation
    change: str | None
    problem: str | None
    nats: Supervised
    processes: list[Supervised]
    addresses: Addresses
    started_ms: float
    ready_s: float | None
    config_hash: str


class Reporter:
    """Puts reports together."""

    def __init__(
        self, folder: StateFolder, beats: Beats, drift: Drift, guard: Guard | None
    ) -> None:
        self._folder = folder
        self._beats = beats
        self._drift = drift
        self._guard = guard
        self._owners: list[OwnerRecord] = []
        self._began_s = time.monotonic()

    async def look(self, bus: Bus, topology: Topology) -> None:
        """Read who owns the queues."""
        try:
            bucket = await bus.js.key_value(subjects.OWNER_BUCKET)
            found = [await _owner(bucket, pool) for pool in topology.pools]
        except (nats.js.errors.Error, nats.errors.Error, TimeoutError, OSError):
            found = []  # nothing can be read: no such bucket yet, the bus is away
        self._owners = [one for one in found if one is not None]

    def report(self, facts: Facts) -> StatusReport:
        """Everything as it is now."""
        at = now_ms()
        found = [self._of(one, at) for one in facts.processes]
        bus = self._of(facts.nats, at)
        queueing = [one for one in found if one.stage == "queueing"]
        law = conservation(queueing, {one.owner for one in self._owners})
        control = self._control()
        watchdog = self._guard.status() if self._guard else None
        queues = self._queues(facts.current.topology, queueing)
        wrong = problems([bus, *found], law, queues, control, watchdog)
        if facts.problem:
            wrong.append(facts.problem)
        return StatusReport(
            healthy=not wrong,
            problems=wrong,
            generation=facts.current.generation,
            change=facts.change,
            drift=self._drift.of(facts.current),
            topology_file=str(self._drift.file),
            config_hash=facts.config_hash,
            pid=os.getpid(),
            control=control,
            watchdog=watchdog,
            queues=queues,
            started_ms=facts.started_ms,
            sent_ms=at,
            ready_s=facts.ready_s,
            addresses=facts.addresses,
            conservation=law,
            bus=bus,
            stages=[one for one in found if one.stage != EXECUTOR],
            executors=[one for one in found if one.stage == EXECUTOR],
        )

    def _of(self, one: Supervised, at: float) -> ProcessStatus:
        beat = self._beats.of(one.instance, one.life.incarnation if one.life else None)
        return process_status(one, beat, self._beats.silent(one.instance), at)

    def _queues(self, topology: Topology, queueing: list[ProcessStatus]) -> list[QueueStatus]:
        """One for each pool, once anybody has owned one."""
        known = {one.pool: one for one in self._owners}
        ready = [one.incarnation for one in queueing if one.incarnation and one.phase == "ready"]
        return [
            QueueStatus(
                pool=pool,
                owner=known[pool].owner if known[pool].owner in ready else None,
                epoch=known[pool].epoch,
                standby=[one for one in ready if one != known[pool].owner],
            )
            for pool in topology.pools
            if pool in known
        ]

    def _control(self) -> ControlStatus:
        note = watchdog_note(self._folder)
        healthy = time.monotonic() - self._began_s >= HEALTHY_S
        return note.model_copy(update={"pid": os.getpid()} | ({"in_a_row": 0} if healthy else {}))


def watchdog_note(folder: StateFolder) -> ControlStatus:
    """What the watchdog has written down about control's ends (its pid is not among it)."""
    try:
        return ControlStatus.model_validate(json.loads(folder.watchdog.read_bytes()) | {"pid": 0})
    except (OSError, ValueError):  # it has never ended abnormally
        return ControlStatus(pid=0)


async def _owner(bucket: Any, pool: str) -> OwnerRecord | None:
    try:
        return OwnerRecord.model_validate_json((await bucket.get(pool)).value or b"")
    except (nats.js.errors.KeyNotFoundError, ValidationError):
        return None
