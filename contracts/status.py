"""What control answers on `hr.control.status`: the whole pipeline at one moment."""

from typing import Literal

from pydantic import Field

from contracts.internal import Internal

Phase = Literal[
    "waiting", "starting", "ready", "silent", "draining", "backoff", "crash_loop", "stopped"
]


class StatusCall(Internal):
    """The question; it has no options yet."""


class ProcessStatus(Internal):
    """One process that control looks after."""

    stage: str
    instance: str
    pool: str | None = None
    incarnation: str | None = None
    pid: int | None = None
    phase: Phase
    generation: int | None = Field(None, description="of the topology that it serves")
    uptime_s: float | None = Field(None, description="of this incarnation, since it was spawned")
    startup_ms: float | None = Field(None, description="from spawn to ready, by its own beat")
    restarts: int = 0
    last_error: str | None = Field(None, description="why it ended last, with its last log lines")
    counters: dict[str, float] = Field(default_factory=dict)
    detail: dict[str, str] = Field(default_factory=dict)
    problem: str | None = Field(None, description="as the process itself says, while it lasts")


class QueueStatus(Internal):
    """Who looks after a pool's queue."""

    pool: str
    owner: str | None = Field(None, description="incarnation; None = nobody now")
    epoch: int = 0
    standby: list[str] = Field(default_factory=list, description="incarnations")


class ControlStatus(Internal):
    """Control itself: how often the watchdog had to start it again."""

    pid: int
    restarts: int = 0
    in_a_row: int = Field(0, description="ends with less than 30 s between them")
    last_error: str | None = None


class WatchdogStatus(Internal):
    """The process that starts control again."""

    pid: int | None = Field(description="None = there is none now; control starts one")
    restarts: int = 0


class Conservation(Internal):
    """accepted = finished + cancelled + failed + expired + running + queued, since queueing's start."""

    accepted: int
    finished: int
    cancelled: int
    failed: int
    expired: int
    running: int
    queued: int
    balanced: bool


class Addresses(Internal):
    """Where clients and operators connect."""

    nats: str
    grpc: str
    http: str
    monitoring: str | None = Field(None, description="nats-server's own pages")


class StatusReport(Internal):
    """Everything an operator asks first. `problems` is empty exactly when all is well."""

    healthy: bool
    problems: list[str] = Field(description="what is wrong, worst first")
    generation: int = Field(description="of the topology that serves")
    change: str | None = Field(None, description="the change of the topology that is being made")
    drift: str | None = Field(None, description="how the file differs from the generation")
    astray: list[str] = Field(
        default_factory=list,
        description="processes that are not what the generation wants: missing, surplus, outdated, "
        "at an older generation",
    )
    topology_file: str
    config_hash: str = Field(description="SHA-256 of the text of the generation that serves")
    pid: int = Field(description="of control")
    control: ControlStatus
    watchdog: WatchdogStatus | None = Field(None, description="None = control runs without one")
    queues: list[QueueStatus] = Field(default_factory=list)
    started_ms: float
    sent_ms: float
    ready_s: float | None = Field(description="from control's start until all was ready")
    addresses: Addresses
    conservation: Conservation | None = Field(description="None until queueing has reported")
    bus: ProcessStatus
    stages: list[ProcessStatus]
    executors: list[ProcessStatus]
