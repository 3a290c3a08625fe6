"""The status report's judgement: what the processes count, and what is wrong first. Pure."""

from collections.abc import Collection, Sequence
from typing import Final

from contracts.internal import Beat
from contracts.status import (
    Conservation,
    ControlStatus,
    Phase,
    ProcessStatus,
    QueueStatus,
    WatchdogStatus,
)
from stages.control.backoff import LOOP
from stages.control.supervisor import Supervised

_ENDS: Final = ("finished", "cancelled", "failed", "expired", "running", "queued")
_WORST: Final[dict[Phase, int]] = {
    "crash_loop": 0,
    "backoff": 1,
    "silent": 2,
    "stopped": 3,
    "starting": 4,
    "waiting": 5,
    "draining": 6,
}
_SAID: Final[dict[Phase, str]] = {
    "crash_loop": "keeps ending after its start",
    "backoff": "has ended and is started again soon",
    "silent": "has not reported for 3 s",
    "stopped": "is stopped",
    "starting": "is starting",
    "waiting": "waits for its start",
    "draining": "is finishing what runs",
}


def process_status(
    one: Supervised, beat: Beat | None, silent: bool, now_ms: float
) -> ProcessStatus:
    """One process as it is now."""
    alive = one.child is not None and one.life is not None
    phase: Phase = "silent" if one.phase == "ready" and silent else one.phase
    return ProcessStatus(
        stage=one.stage,
        instance=one.instance,
        pool=one.pool,
        incarnation=one.life.incarnation if one.life and alive else None,
        pid=one.child.pid if one.child else None,
        phase=phase,
        generation=beat.generation if beat else None,
        uptime_s=(now_ms - one.life.spawned_ms) / 1000 if one.life and alive else None,
        startup_ms=beat.ready_ms - beat.spawned_ms if beat and beat.ready_ms else None,
        restarts=max(0, one.restarts),
        last_error=one.last_error,
        counters=beat.counters if beat else {},
        detail=beat.detail if beat else {},
        problem=beat.problem if beat else None,
    )


def conservation(
    queueing: Sequence[ProcessStatus], owners: Collection[str] = ()
) -> Conservation | None:
    """Whether every accepted request is accounted for; None before queueing has reported.

    One that is silent counts by its last word only while it is an owner: whoever took its pools over
    has its figures.
    """
    counters = [
        one.counters
        for one in queueing
        if "accepted" in one.counters and (one.phase != "silent" or one.incarnation in owners)
    ]
    if not counters:
        return None
    sums = {name: int(sum(c.get(name, 0) for c in counters)) for name in ("accepted", *_ENDS)}
    balanced = sums["accepted"] == sum(sums[name] for name in _ENDS)
    return Conservation(**sums, balanced=balanced)


def problems(
    processes: Sequence[ProcessStatus],
    law: Conservation | None,
    queues: Sequence[QueueStatus] = (),
    control: ControlStatus | None = None,
    watchdog: WatchdogStatus | None = None,
) -> list[str]:
    """What is wrong, worst first: lost requests, queues that nobody serves, processes, watchdog."""
    said = []
    if law is not None and not law.balanced:
        parts = sum(getattr(law, name) for name in _ENDS)
        said.append(f"{law.accepted} requests were accepted but {parts} are accounted for")
    said += [f"nobody owns the queue of pool {one.pool}" for one in queues if one.owner is None]
    found = [one for one in processes if one.phase != "ready"]
    found.sort(key=lambda one: (_WORST[one.phase], one.instance))
    said += [_sentence(one) for one in found]
    said += [f"{one.instance}: {one.problem}" for one in processes if one.problem]
    if control is not None and control.in_a_row >= LOOP:
        said.append(f"control keeps ending ({control.in_a_row} times): {control.last_error}")
    if watchdog is not None and watchdog.pid is None:
        said.append("there is no watchdog: control could not be started again; it starts one")
    return said


def _sentence(one: ProcessStatus) -> str:
    times = f" (restarts: {one.restarts})" if one.restarts else ""
    return f"{one.instance} {_SAID[one.phase]}{times}{_cause(one.last_error)}"


def _cause(last_error: str | None) -> str:
    """How it ended and, unless somebody killed it, its last word."""
    if not last_error:
        return ""
    first, *lines = last_error.splitlines()
    how = first.partition(";")[0]
    return f": {how}: {lines[-1]}" if lines and "signal" not in how else f": {how}"
