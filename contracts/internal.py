"""What stages ask of each other: one request's way from the door to its lease (JSON by pydantic)."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from contracts.client import SCHEMA_VERSION, Decision, FinishReason, Priority, Sampling
from contracts.errors import ErrorInfo

Verb = Literal["generate", "chat", "cancel", "models"]
Door = Literal["nats", "grpc"]


class Internal(BaseModel):
    """Base of internal messages: frozen, unknown keys ignored so that versions can be mixed."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class Stamps(Internal):
    """When each stage let go of the request, unix ms; None until it has."""

    received: float
    ingress: float | None = None
    routing: float | None = None
    stored: float | None = None
    leased: float | None = None
    started: float | None = None
    first_token: float | None = None


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
    """Ingress to egress: the request was accepted on these terms, or refused."""

    request_id: str
    admitted: AdmitReply | None = None
    error: ErrorInfo | None = None


class OpenSession(Internal):
    """Ingress asks an egress to hold a NATS client's session before the request is admitted."""

    op: Literal["open"] = "open"
    request_id: str
    tenant: str
    reply: str = Field(description="the client's inbox")
    received_ms: float


class SettleSession(Internal):
    """The outcome of admission for a session opened before (sent without waiting)."""

    op: Literal["settle"] = "settle"
    settled: Settled


class CancelSession(Internal):
    """End a session on behalf of its tenant."""

    op: Literal["cancel"] = "cancel"
    request_id: str
    tenant: str


class DropSession(Internal):
    """Forget a session that ingress has opened elsewhere (sent without waiting, never answered).

    Silent: nothing goes to the client, no receipt, no CancelNotice; an unknown id is fine.
    """

    op: Literal["drop"] = "drop"
    request_id: str


class ProgressQuery(Internal):
    """Queueing asks what has been delivered, before a request is leased again (64 ids at most)."""

    op: Literal["progress"] = "progress"
    request_ids: list[str]


class QueuePosition(Internal):
    """Queueing tells where waiting requests stand, every 5 s (sent without waiting)."""

    op: Literal["position"] = "position"
    positions: dict[str, int] = Field(description="request → requests served before it")


class FailSession(Internal):
    """Queueing asks an egress to end an accepted request as an error, receipt included.

    Answered by `Done`. A session that is not settled yet is ended once its terms have come.
    """

    op: Literal["fail"] = "fail"
    request_id: str
    error: ErrorInfo


SessionCall = Annotated[
    OpenSession
    | SettleSession
    | CancelSession
    | DropSession
    | ProgressQuery
    | QueuePosition
    | FailSession,
    Field(discriminator="op"),
]
SESSION_CALL: TypeAdapter[SessionCall] = TypeAdapter(SessionCall)


class Done(Internal):
    """A plain yes or no."""

    ok: bool


class Progress(Internal):
    """What an egress knows of one session."""

    request_id: str
    open: bool
    attempt: int = Field(description="highest attempt seen, 0 = none")
    ids: list[int] = Field(description="tokens received contiguously so far")
    finish_reason: FinishReason | None = Field(
        None, description="of a closed session whose receipt is stored"
    )


class ProgressReply(Internal):
    """One entry for each session the egress knows; others are gone."""

    sessions: list[Progress]


class Lease(Internal):
    """Queueing hands a request to an executor (request/reply on `hr.lease.<executor>`)."""

    work: Work
    attempt: int = Field(ge=1)
    leased_ms: float
    resume_ids: list[int] = Field(default_factory=list, description="emitted by earlier attempts")


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


class InventoryCall(Internal):
    """Asks every executor what it runs (on `hr.inventory`, all answer)."""


class Inventory(Internal):
    """What an executor runs, asked of all at once by a new queueing owner."""

    executor: str
    pool: str
    running: list[tuple[str, int]] = Field(description="(request, attempt)")


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


class SnapshotCall(Internal):
    """Ask metering for a snapshot with every usage event stored before the call."""


class SnapshotReply(Internal):
    """The published snapshot holds every usage event stored before the call."""

    path: str
    rows: int
    published_ms: float
