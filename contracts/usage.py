"""Events of the usage stream. Billing follows receipts, cost follows attempts."""

from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from contracts.client import FinishReason, Priority, Timings
from contracts.internal import Door, Internal, Work


class Price(Internal):
    """What an accelerator of the pool costs when the event was made."""

    accelerator_hour: float
    currency: str


class AttemptEvent(Internal):
    """What one run of a request on one executor took. Key: `<request>:<attempt>:final`.

    Queueing closes the attempt of a killed executor from its last report, as `lost`, under
    `<request>:<attempt>:lost`; should the executor's own final come all the same, it counts.
    """

    kind: Literal["attempt"] = "attempt"
    request_id: str
    attempt: int
    tenant: str
    pool: str
    model: str
    executor: str
    generation: int
    finish: Literal["stop", "length", "cancelled", "error", "moved", "lost"]
    prompt_tokens: int
    cached_tokens: int
    computed_tokens: int = Field(description="prompt and output tokens run through the model")
    completion_tokens: int = Field(description="tokens this attempt sampled")
    accelerator_s: float = Field(description="its share of the executor's busy time")
    prefill_s: float | None = Field(
        None, description="part of accelerator_s spent on prompt tokens; None = not measured"
    )
    started_ms: float
    finished_ms: float
    price: Price
    zone: str = ""
    device: str = ""
    fraction: float = Field(1.0, description="of its machine that the executor has")
    fingerprint: str = ""
    epoch: int = Field(0, description="of the queueing owner that leased it")

    @property
    def key(self) -> str:
        """Unique over all usage events."""
        return f"{self.request_id}:{self.attempt}:{'lost' if self.finish == 'lost' else 'final'}"


class AttemptReport(Internal):
    """What an executor's running attempts have taken so far (`finish` is `lost`: what they would be
    closed as)."""

    executor: str
    pool: str
    sent_ms: float
    attempts: list[AttemptEvent]


class ReceiptEvent(Internal):
    """What was delivered to the caller; exactly one for an accepted request.

    Key: `<request>:receipt`.
    """

    kind: Literal["receipt"] = "receipt"
    request_id: str
    tenant: str
    route: str
    pool: str
    model: str
    reason: str
    door: Door
    priority: Priority
    generation: int
    egress: str
    finish_reason: FinishReason
    error_code: str | None = None
    attempt: int = Field(description="the attempt that delivered, 0 = none")
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int = Field(description="tokens delivered")
    queue_ms: float | None
    ttft_ms: float | None
    tpot_ms: float | None
    e2e_ms: float
    received_ms: float
    finished_ms: float
    stages: dict[str, float] = Field(description="ms spent in each stage")
    metadata: dict[str, str] = Field(default_factory=dict)
    sibling_of: str | None = Field(None, description="first request of a call with several answers")
    choice: int = 0
    key_id: str | None = None
    resumed: Literal["exact", "inexact"] | None = None

    @classmethod
    def of(
        cls,
        work: Work,
        timings: Timings,
        received_ms: float,
        *,
        egress: str,
        finish_reason: FinishReason,
        prompt_tokens: int,
        error_code: str | None = None,
        attempt: int = 0,
        cached_tokens: int = 0,
        completion_tokens: int = 0,
        resumed: Literal["exact", "inexact"] | None = None,
    ) -> "ReceiptEvent":
        """The receipt of a request, whoever writes it. A call with several answers has one prompt: it
        is billed with the first."""
        decision, first = work.decision(), work.choice == 0
        return cls(
            request_id=work.request_id,
            tenant=work.tenant,
            route=decision.route,
            pool=decision.pool,
            model=decision.model,
            reason=decision.reason,
            door=work.door,
            priority=work.priority,
            generation=work.generation,
            egress=egress,
            finish_reason=finish_reason,
            error_code=error_code,
            attempt=attempt,
            prompt_tokens=prompt_tokens if first else 0,
            cached_tokens=cached_tokens if first else 0,
            completion_tokens=completion_tokens,
            queue_ms=timings.queue_ms,
            ttft_ms=timings.ttft_ms,
            tpot_ms=timings.tpot_ms,
            e2e_ms=timings.e2e_ms,
            received_ms=received_ms,
            finished_ms=received_ms + timings.e2e_ms,
            stages=timings.stages,
            metadata=work.metadata,
            sibling_of=work.sibling_of,
            choice=work.choice,
            key_id=work.key_id,
            resumed=resumed,
        )

    @property
    def key(self) -> str:
        """Unique over all usage events."""
        return f"{self.request_id}:receipt"


class IntervalEvent(Internal):
    """A stretch of an executor's life; its parts tile it exactly. Key: `<executor>:<start_ms>`.

    Executors report at least every two seconds; the supervisor adds the stretch between a killed
    executor's last report and its exit as `lost`.
    """

    kind: Literal["interval"] = "interval"
    executor: str
    pool: str
    model: str
    zone: str
    device: str
    generation: int
    start_ms: float
    end_ms: float
    startup_ms: float = 0.0
    busy_ms: float = 0.0
    host_ms: float = 0.0
    idle_ms: float = 0.0
    drain_ms: float = 0.0
    lost_ms: float = 0.0
    price: Price
    fraction: float = 1.0
    fingerprint: str = ""

    @property
    def key(self) -> str:
        """Unique over all usage events."""
        return f"{self.executor}:{self.start_ms:.3f}"


UsageEvent = Annotated[AttemptEvent | ReceiptEvent | IntervalEvent, Field(discriminator="kind")]
USAGE_EVENT: TypeAdapter[UsageEvent] = TypeAdapter(UsageEvent)
