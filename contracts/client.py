"""What callers send and receive, the same through every door (JSON on NATS, protobuf on gRPC)."""

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from contracts.errors import ErrorInfo

SCHEMA_VERSION = 1
# A bus message has at most 8 MB. Payload plus headers above that would close the connection for
# good, so requests stay 16 KB below it: callers and doors check before they publish.
MAX_REQUEST_BYTES = (8 << 20) - (16 << 10)


class Priority(StrEnum):
    """Order of service: all `high` before any `normal` before any `low`."""

    HIGH = "high"
    NORMAL = "normal"
    LOW = "low"

    @property
    def rank(self) -> int:
        """0 is served first."""
        return list(Priority).index(self)


class FinishReason(StrEnum):
    """Why a request ended; every accepted request ends in exactly one of these."""

    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"
    TIMEOUT = "timeout"
    ERROR = "error"


def _no_nul(text: str) -> str:
    if "\x00" in text:
        raise ValueError("must not contain NUL characters; remove them")
    return text


Text = Annotated[str, AfterValidator(_no_nul)]
StopString = Annotated[Text, Field(min_length=1, max_length=256)]


class Sampling(BaseModel):
    """How the next token is chosen. `temperature: 0` is greedy."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    temperature: float = Field(
        1.0, ge=0, le=2, allow_inf_nan=False, description="0 = greedy; higher is more varied"
    )
    top_p: float = Field(
        1.0, gt=0, le=1, allow_inf_nan=False, description="smallest set with this probability mass"
    )
    top_k: int = Field(0, ge=0, le=1_000_000, description="only the k likeliest tokens; 0 = all")
    seed: int | None = Field(
        None, ge=0, lt=2**63, description="same seed and prompt, same text; drawn if missing"
    )


class CallOptions(Sampling):
    """What a generate and a chat call have in common."""

    model: Text | None = Field(
        None, min_length=1, max_length=256, description="a model of the topology; else the route's"
    )
    max_tokens: int | None = Field(
        None, ge=1, le=1_000_000, description="most tokens to generate; else the route's default"
    )
    stop: list[StopString] = Field(
        default_factory=list, max_length=16, description="end before any of these texts"
    )
    ignore_eos: bool = Field(False, description="go on after the model's end token (benchmarks)")
    priority: Annotated[Priority, Field(strict=False)] = Field(
        Priority.NORMAL, description="high, normal or low"
    )
    timeout_ms: int | None = Field(
        None, ge=1, le=3_600_000, description="the whole call's limit in ms; else the route's"
    )
    deadline_unix_ms: int | None = Field(
        None, ge=0, lt=2**53, description="absolute limit in unix ms; the earlier of the two counts"
    )
    token_ids: bool = Field(False, description="send token ids beside the text")
    metadata: dict[Text, Text] = Field(
        default_factory=dict, max_length=16, description="kept with the usage row"
    )
    idempotency_key: Text | None = Field(
        None,
        min_length=1,
        max_length=256,
        description="same key and body within 24 h: the same request, run and billed once",
    )
    resume_window_ms: int = Field(
        0,
        ge=0,
        le=600_000,
        description="how long it goes on without its client, who may resume; 0 = cancelled at once",
    )

    def sampling(self) -> Sampling:
        """The sampling part, as the engine takes it."""
        return Sampling(
            temperature=self.temperature, top_p=self.top_p, top_k=self.top_k, seed=self.seed
        )


class GenerateRequest(CallOptions):
    """Continue a text."""

    prompt: Text = Field(min_length=1, description="the text to continue")


class Message(BaseModel):
    """One turn of a conversation."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    role: Literal["system", "user", "assistant"]
    content: Text


class ChatRequest(CallOptions):
    """Answer a conversation, through the model's own chat template."""

    messages: list[Message] = Field(min_length=1, max_length=4096, description="oldest first")


class CancelRequest(BaseModel):
    """End a running or queued request of the same tenant."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    request_id: str = Field(min_length=1, max_length=64)


class ResumeRequest(BaseModel):
    """Go on reading a request of the same tenant, running or finished at most 5 minutes ago."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    request_id: str = Field(min_length=1, max_length=64)
    offset: int = Field(0, ge=0, le=10_000_000, description="tokens already received")


class Decision(BaseModel):
    """Where the request went and why."""

    model_config = ConfigDict(frozen=True)

    route: str
    pool: str
    model: str
    reason: str


class Usage(BaseModel):
    """Tokens delivered to the caller (what is billed)."""

    model_config = ConfigDict(frozen=True)

    prompt_tokens: int
    cached_tokens: int = Field(description="prompt tokens that were not computed again")
    completion_tokens: int
    total_tokens: int


class Cost(BaseModel):
    """What the request used of the accelerators, priced by its pool."""

    model_config = ConfigDict(frozen=True)

    amount: float
    currency: str
    accelerator_s: float


class Timings(BaseModel):
    """Milliseconds from arrival; a part that did not happen is missing."""

    model_config = ConfigDict(frozen=True)

    queue_ms: float | None = None
    ttft_ms: float | None = None
    tpot_ms: float | None = None
    e2e_ms: float
    stages: dict[str, float] = Field(
        default_factory=dict, description="ms spent in each stage, in the order of the journey"
    )


class Accepted(BaseModel):
    """First answer: the request is stored and will end in exactly one `complete`."""

    type: Literal["accepted"] = "accepted"
    request_id: str
    accepted: Literal[True] = True
    decision: Decision


class Refused(BaseModel):
    """First and only answer to a request that was not taken."""

    type: Literal["error"] = "error"
    request_id: str
    accepted: Literal[False] = False
    error: ErrorInfo


class Queued(BaseModel):
    """Heartbeat while waiting."""

    type: Literal["queued"] = "queued"
    queued: Literal[True] = True
    position: int = Field(description="requests of the pool that will be served before this one")


class Chunk(BaseModel):
    """New text. Offsets count tokens; `seq` counts chunks."""

    type: Literal["chunk"] = "chunk"
    seq: int
    offset: int = Field(description="delivered tokens before this chunk")
    text: str
    next_offset: int = Field(0, description="what to resume with after this chunk")
    token_ids: list[int] | None = None


class Complete(BaseModel):
    """The one terminal answer."""

    type: Literal["complete"] = "complete"
    request_id: str
    finish_reason: FinishReason
    usage: Usage
    cost: Cost
    timings: Timings
    decision: Decision
    error: ErrorInfo | None = None
    resumed: Literal["exact", "inexact"] | None = Field(
        None, description="it went on at another executor: of the same fingerprint, or of another"
    )
    fingerprint: str | None = Field(
        None,
        description="of the executor: where it is equal, equal seeds make equal texts. None: no token "
        "came, or executors of several fingerprints made them",
    )


class CancelReply(BaseModel):
    """The request has ended as `cancelled`."""

    type: Literal["cancelled"] = "cancelled"
    request_id: str


class ModelCard(BaseModel):
    """A model that this tenant may name."""

    id: str
    context: int = Field(description="longest prompt plus answer, in tokens")
    pools: list[str]


class ModelList(BaseModel):
    """Answer to a `models` call."""

    type: Literal["models"] = "models"
    models: list[ModelCard]
