"""Which processes a topology needs, in which order they start and stop. Pure."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from contracts.lifecycle import Actuals
from contracts.topology import Topology
from stages.runtime.limits import DRAIN_S, END_S

EXECUTOR: Final = "gpu_worker"
BUS: Final = "nats-server"
STOP_S: Final = 30.0  # from SIGTERM to the last process's end, whatever happens

# What executors of a pool need not be made anew for; a new option is one that they are made with.
LIVE_OF_A_POOL: Final = frozenset({"executors", "price", "buckets", "queue"})

_THREAD_VARIABLES: Final = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
# Each phase ends before the next begins. New work is refused first; executors and egress finish what
# runs together; queueing outlives them to cross off what they ended; metering outlives all that
# reports usage, so that its last snapshot has everything. A phase takes as long as its slowest
# stage may (stages/runtime/limits.py); nats-server has the rest of STOP_S.
_STOP_PHASES: Final = (
    frozenset({"ingress"}),
    frozenset({"routing", "egress", EXECUTOR}),
    frozenset({"queueing"}),
    frozenset({"metering"}),
)


@dataclass(frozen=True)
class ProcessSpec:
    """One process to keep running."""

    stage: str
    instance: str
    module: str
    pool: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    digest: str = ""  # of what it was made with: another one wanted = this one is outdated

    @property
    def number(self) -> int:
        """The last part of its name."""
        return int(self.instance.rpartition("-")[2])


def plan(topology: Topology, actuals: Actuals | None = None) -> list[ProcessSpec]:
    """All processes, in starting order, as if none ran yet.

    An executor takes longest (torch and the model), so the first goes first and the quick stages
    start beside it; further executors follow.
    """
    executors = list(_executors(topology, actuals or Actuals()))
    return [*executors[:1], *_stages(topology), *executors[1:]]


def _stages(topology: Topology) -> Iterator[ProcessSpec]:
    replicas = {
        "ingress": topology.stages.ingress.replicas,
        "routing": 1,
        "queueing": topology.stages.queueing.replicas,
        "egress": topology.stages.egress.replicas,
        "metering": 1,
    }
    for stage, count in replicas.items():
        for number in range(count):
            yield ProcessSpec(stage, f"{stage}-{number}", f"stages.{stage}")


def _executors(topology: Topology, actuals: Actuals) -> Iterator[ProcessSpec]:
    for name, pool in topology.pools.items():
        env = dict.fromkeys(_THREAD_VARIABLES, str(pool.threads))
        digest = executor_digest(topology, name)
        for number in range(actuals.executors_of(topology, name)):
            yield ProcessSpec(EXECUTOR, f"{name}-{number}", EXECUTOR, name, env, digest)


def executor_digest(topology: Topology, pool: str) -> str:
    """Of everything that executors of a pool are made with."""
    made_with = {
        "pool": topology.pools[pool].model_dump(mode="json", exclude=set(LIVE_OF_A_POOL)),
        "model": topology.model_of(pool).model_dump(mode="json"),
    }
    return hashlib.sha256(json.dumps(made_with, sort_keys=True).encode()).hexdigest()[:12]


@dataclass(frozen=True)
class Steps:
    """From what runs to what should run."""

    keep: list[ProcessSpec]
    start: list[ProcessSpec]  # in starting order
    surplus: list[ProcessSpec]  # to drain and stop: too many, outdated, or nothing wants them

    @property
    def wanted(self) -> list[ProcessSpec]:
        """All that should run."""
        return [*self.keep, *self.start]


def reconcile(wanted: Sequence[ProcessSpec], running: Iterable[ProcessSpec]) -> Steps:
    """Keep what fits, lowest numbers first; start what is missing under the lowest free numbers.

    So a replacement lives beside the one that it replaces, under another name.
    """
    running = sorted(running, key=lambda one: (one.stage, one.pool or "", one.number))
    taken = {one.instance for one in running}
    free = {one.instance: one for one in running}
    steps = Steps([], [], [])
    for spec in wanted:
        fits = next((one for one in free.values() if _alike(one, spec)), None)
        if fits is not None:
            steps.keep.append(free.pop(fits.instance))
            continue
        name = _free_name(spec, taken)
        taken.add(name)
        steps.start.append(replace(spec, instance=name))
    steps.surplus.extend(free.values())
    return steps


def _alike(one: ProcessSpec, other: ProcessSpec) -> bool:
    return (one.stage, one.pool, one.digest) == (other.stage, other.pool, other.digest)


def _free_name(spec: ProcessSpec, taken: set[str]) -> str:
    base = spec.instance.rpartition("-")[0]
    number = 0
    while f"{base}-{number}" in taken:
        number += 1
    return f"{base}-{number}"


def stop_phases(specs: Sequence[ProcessSpec]) -> list[tuple[list[str], float]]:
    """Groups of instances to end together, with the seconds each group may take."""
    phases = []
    for stages in _STOP_PHASES:
        seconds = max(DRAIN_S[stage] for stage in stages) + END_S
        names = [spec.instance for spec in specs if spec.stage in stages]
        if names:
            phases.append((names, seconds))
    return phases
