"""Which processes a topology needs, in which order they start and stop. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from contracts.topology import Topology
from stages.runtime.limits import DRAIN_S, END_S

EXECUTOR: Final = "gpu_worker"
BUS: Final = "nats-server"
STOP_S: Final = 30.0  # from SIGTERM to the last process's end, whatever happens

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


def plan(topology: Topology) -> list[ProcessSpec]:
    """All processes, in starting order.

    An executor takes longest (torch and the model), so the first goes first and the quick stages
    start beside it; further executors follow.
    """
    executors = list(_executors(topology))
    return [*executors[:1], *_stages(topology), *executors[1:]]


def _stages(topology: Topology) -> Iterator[ProcessSpec]:
    replicas = {
        "ingress": topology.stages.ingress.replicas,
        "routing": 1,
        "queueing": 1,
        "egress": topology.stages.egress.replicas,
        "metering": 1,
    }
    for stage, count in replicas.items():
        for number in range(count):
            yield ProcessSpec(stage, f"{stage}-{number}", f"stages.{stage}")


def _executors(topology: Topology) -> Iterator[ProcessSpec]:
    for name, pool in topology.pools.items():
        env = dict.fromkeys(_THREAD_VARIABLES, str(pool.threads))
        for number in range(pool.executors.min):
            yield ProcessSpec(EXECUTOR, f"{name}-{number}", EXECUTOR, name, env)


def stop_phases(specs: Sequence[ProcessSpec]) -> list[tuple[list[str], float]]:
    """Groups of instances to end together, with the seconds each group may take."""
    phases = []
    for stages in _STOP_PHASES:
        seconds = max(DRAIN_S[stage] for stage in stages) + END_S
        names = [spec.instance for spec in specs if spec.stage in stages]
        if names:
            phases.append((names, seconds))
    return phases
