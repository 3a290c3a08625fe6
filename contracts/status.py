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
    uptime_s: float | None = Field(None, description="of this incarnation, since it was spawned")
    startup_ms: float | None = Field(None, description="from spawn to ready, by its own beat")
    restarts: int = 0
    last_error: str | None = Field(None, description="why it ended last, with its last log lines")
    counters: dict[str, float] = Field(default_factory=dict)
    detail: dict[str, str] = Field(default_factory=dict)


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
    monitoring: str | None = Field(None, description="nats-server's own pages")


class StatusReport(Internal):
    """Everything an operator asks first. `problems` is empty exactly when all is well."""

    healthy: bool
    problems: list[str] = Field(description="what is wrong, worst first")
    generation: int
    topology_file: str
    config_hash: str
    pid: int = Field(description="of control")
    started_ms: float
    sent_ms: float
    ready_s: float | None = Field(description="from control's start until all was ready")
    addresses: Addresses
    conservation: Conservation | None = Field(description="None until queueing has reported")
    bus: ProcessStatus
    stages: list[ProcessStatus]
    executors: list[ProcessStatus]
