"""What stages ask of each other: one request's way from the door to its lease (JSON by pydantic)."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from contracts.client import (
    SCHEMA_VERSION,
    Decision,
    FinishReason,
    Priority,
    Sampling,
)
from contracts.errors import ErrorInfo

Verb = Literal["generate", "chat", "cancel", "resume", "models"]
Door = Literal["nats", "grpc", "http"]


class Internal(BaseModel):
    """Base of internal messages: frozen, unknown keys ignored so that versions can be mixed."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class Stamps(Internal):
    """When each stage let go of the request, unix ms; None until it has."""

    received: float
    ingress: float | None = None
    routing: float | None = None
    stored: float | None = None


class ClientCall(Internal):
    """A call that came through a door other than NATS (egress → `hr.in.<partition>`)."""

    schema_version: int = SCHEMA_VERSION
    request_id: str
    verb: Verb
    egress: str
    door: Door
    api_key: str | None
    tenant: str | None = Field(description="named by the caller; None = the key's tenant")
    body: str = Field(description="the client request as JSON text")
    received_ms: float
    sibling_of: str | None = Field(None, description="first request of a call with several answers")
    choice: int = Field(0, description="index among those answers; its prompt is billed at 0 only")


class Work(Internal):
    """A validated request: what routing decides on, queueing stores and an executor runs."""

    schema_version: int = SCHEMA_VERSION
    request_id: str
    tenant: str
    egress: str = Field(description="instance that holds the client's session")
    door: Door
    route: str
    model: str = Field(description="topology name of the model whose tokenizer made prompt_ids")
    model_named: bool = Field(description="the caller named the model")
    pool: str | None = Field(None, description="set by routing")
    reason: str | None = Field(None, description="why that pool; set by routing")
    prompt_ids: list[int]
    max_tokens: int
    sampling: Sampling = Field(description="with the seed filled in")
    stop: list[str] = Field(default_factory=list)
    ignore_eos: bool = False
    token_ids: bool = False
    priority: Priority
    deadline_ms: int = Field(description="absolute, unix ms")
    generation: int
    traceparent: str | None = None
    metadata: dict[str, str] = Field(default_factory=dict)
    stamps: Stamps
    key_id: str | None = Field(None, description="of the API key (`keys.key_id`), for revocation")
    hop: int = Field(0, description="how often it was moved to another pool")
    attempt: int = Field(0, description="highest that the pools before this one may have given it")
    sibling_of: str | None = None
    choice: int = 0
    resume_window_ms: int = 0

    @property
    def tokens(self) -> int:
        """Upper bound of KV tokens the request can occupy."""
        return len(self.prompt_ids) + self.max_tokens

    def decision(self) -> Decision:
        """The decision as the caller sees it; only after routing."""
        assert self.pool is not None
        assert self.reason is not None
        return Decision(route=self.route, pool=self.pool, model=self.model, reason=self.reason)


class AdmitReply(Internal):
    """Queueing's answer: the request is stored, at this place in the queue."""

    work: Work = Field(description="as stored; prompt_ids emptied to keep the answer small")
    prompt_tokens: int
    position: int


class Settled(Internal):
    """Ingress to egress: the request was accepted on these terms, or refused.

    The answer to a `resume` call as well: then `same_as` is the request to go on with.
    """

    request_id: str
    admitted: AdmitReply | None = None
    error: ErrorInfo | None = None
    same_as: str | None = Field(
        None, description="an idempotent repeat: this request of the tenant has the answer"
    )
    tenant: str | None = Field(None, description="set with same_as")


class Done(Internal):
    """A plain yes or no."""

    ok: bool


class Lease(Internal):
    """Queueing hands a request to an executor (request/reply on `hr.lease.<executor>`)."""

    work: Work
    attempt: int = Field(ge=1)
    resume_ids: list[int] = Field(default_factory=list, description="emitted by earlier attempts")
    epoch: int = Field(
        0, description="of the pool's owner; executors refuse a lower one than known"
    )


class CancelNotice(Internal):
    """A session is closed: drop it from the queue, stop it on the executor.

    With `attempt` only executors are meant: they stop that attempt, a newer one runs elsewhere.
    """

    request_id: str
    reason: FinishReason
    orphan: bool = Field(False, description="nobody else writes its receipt: queueing must")
    attempt: int | None = Field(
        None, description="stop this attempt only, the request goes on; None = it has ended"
    )
    pool: str | None = None
    epoch: int = Field(0, description="set by queueing: executors ignore a lower one than known")


class InventoryCall(Internal):
    """Asks every executor of a pool what it runs (on `hr.inventory`, all of that pool answer).

    From now on they know this epoch and refuse leases of lower ones.
    """

    pool: str | None = Field(None, description="None = of all pools")
    epoch: int = 0


class Inventory(Internal):
    """What an executor runs, asked of all at once by a new queueing owner."""

    executor: str
    pool: str
    running: list[tuple[str, int]] = Field(description="(request, attempt)")


class OwnerRecord(Internal):
    """Who owns a pool's queue (bucket HR_OWNER, key = pool), replaced by compare-and-set.

    The owner writes it again 4 times a second; a standby takes over what has not changed for 1 s.
    """

    pool: str
    owner: str = Field(description="incarnation; empty = given up in order, free at once")
    epoch: int = Field(description="grows with every change of owner")
    beat: int = Field(description="grows with every write of the same owner")
    ended: dict[str, int] = Field(
        default_factory=dict,
        description="finished, cancelled, failed, expired since the pool's first owner",
    )


class Release(Internal):
    """An executor that ends gives running requests back (on `hr.release.<pool>`): lease them again.

    Their attempts end as `moved`; what they sampled has been sent before this.
    """

    executor: str
    pool: str
    attempts: list[tuple[str, int]]


class MoveCall(Internal):
    """Move waiting requests to another pool of the same model (on `hr.move.<from>`)."""

    to: str
    request_ids: list[str] | None = Field(None, description="None = all that wait")
    reason: str = "moved by an operator"


class MoveReply(Internal):
    """What became of it; what runs already stays."""

    moved: list[str]
    stayed: dict[str, str] = Field(description="request → why it stayed")


class IdempotencyRecord(Internal):
    """Which request has an idempotency key (bucket HR_IDEMPOTENCY, kept 24 h)."""

    request_id: str
    body_sha256: str
    created_ms: float
    stored: bool = Field(False, description="it was accepted: the key is never free again")


class Beat(Internal):
    """Liveness, twice a second."""

    stage: str
    instance: str = Field(description="stable name, for example small-0")
    incarnation: str = Field(description="instance plus a suffix drawn at each start")
    pid: int
    generation: int
    ready: bool
    draining: bool = False
    spawned_ms: float
    ready_ms: float | None = None
    sent_ms: float
    counters: dict[str, float] = Field(default_factory=dict, description="since start")
    detail: dict[str, str] = Field(default_factory=dict)
    problem: str | None = Field(None, description="what an operator should know, while it lasts")


class SnapshotCall(Internal):
    """Ask metering for a snapshot with every usage event stored before the call."""


class SnapshotReply(Internal):
    """The published snapshot holds every usage event stored before the call."""

    path: str
    rows: int
    published_ms: float
