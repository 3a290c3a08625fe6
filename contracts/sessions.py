"""Messages about sessions: an egress holds one for each client, and others may take it over."""

from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from contracts.client import Complete, FinishReason
from contracts.errors import ErrorInfo
from contracts.internal import AdmitReply, Internal, Settled


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
    pool: str | None = None
    epoch: int = Field(0, description="of the pool's owner; a lower one than known is refused")


class ResumeSession(Internal):
    """Ingress asks an egress to go on with a session at a NATS client's inbox, from `offset`.

    The egress takes it over wherever it is now; it alone answers the client, also with errors.
    """

    op: Literal["resume"] = "resume"
    request_id: str
    tenant: str
    offset: int
    reply: str
    received_ms: float


class YieldSession(Internal):
    """Another egress takes the session over: close it without a word. Answered by `ProgressReply`."""

    op: Literal["yield"] = "yield"
    request_id: str
    egress: str = Field(description="who takes it over")


class AdoptSession(Internal):
    """Queueing asks an egress to go on with a session whose egress is lost, without a client.

    Answered by `Done`. Its client may come back by `resume`; the request is cancelled when it does
    not (30 s, or its own resume_window_ms if that is longer).
    """

    op: Literal["adopt"] = "adopt"
    terms: AdmitReply
    executor: str | None
    attempt: int


SessionCall = Annotated[
    OpenSession
    | SettleSession
    | CancelSession
    | DropSession
    | ProgressQuery
    | QueuePosition
    | FailSession
    | ResumeSession
    | YieldSession
    | AdoptSession,
    Field(discriminator="op"),
]


SESSION_CALL: TypeAdapter[SessionCall] = TypeAdapter(SessionCall)


class Progress(Internal):
    """What an egress knows of one session."""

    request_id: str
    open: bool
    attempt: int = Field(description="highest attempt seen, 0 = none")
    ids: list[int] = Field(description="tokens received contiguously so far")
    finish_reason: FinishReason | None = Field(
        None, description="of a closed session whose receipt is stored"
    )
    fingerprints: dict[int, str] = Field(
        default_factory=dict, description="attempt → of its executor; told when it is taken over"
    )
    accelerator_us: dict[int, int] = Field(default_factory=dict, description="by attempt, as above")


class ProgressReply(Internal):
    """One entry for each session the egress knows; others are gone."""

    sessions: list[Progress]


class TakeSession(Internal):
    """An egress takes over a session (on `hr.take.<pool>`); not_found for another tenant's."""

    request_id: str
    tenant: str
    egress: str


class TakeReply(Internal):
    """The terms of the request and where it runs; frames go to its new egress after a repair call."""

    terms: AdmitReply
    executor: str | None
    attempt: int
    before: str | None = Field(None, description="egress that had it until now")


class RepairCall(Internal):
    """Tokens of an attempt again, from `offset` (on `hr.repair.<executor>`)."""

    request_id: str
    offset: int = Field(ge=0, description="output tokens before the wanted ones")
    egress: str | None = Field(None, description="later frames go there; None = as before")


class RepairReply(Internal):
    """All tokens from `offset` that the attempt has made; not_found when it is not known here."""

    request_id: str
    attempt: int
    offset: int
    ids: list[int]
    accelerator_us: int
    cached_tokens: int
    started_ms: float
    finish: str | None = Field(description="as in TokenItem; None while it runs")
    error: str | None = None
    fingerprint: str = Field("", description="of the executor")


class SessionRecord(Internal):
    """What another egress needs of a session (stream HR_SESSION, the last one of a request counts).

    Written when the request is accepted and once more when it has ended, then with all its tokens.
    """

    request_id: str
    tenant: str
    egress: str
    terms: AdmitReply
    ids: list[int] | None = Field(None, description="delivered tokens, once it has ended")
    complete: Complete | None = None
