"""One class per section of topology.yaml. The reference page is generated from these fields."""

from datetime import datetime
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from contracts import subjects
from contracts.client import Priority

# Tokens in a KV block. Executors reserve whole blocks, and a step must hold one tile of prefill of
# the same size beside a decode row for each slot.
KV_BLOCK: Final = 64


def unit(name: str) -> Any:
    """The unit of a field, for messages and the reference page."""
    return {"unit": name}


def _name(text: str) -> str:
    if not subjects.is_name(text):
        raise ValueError(
            "a name starts with a letter or digit and has at most 64 letters, digits, '-' and '_'"
        )
    return text


def _listen(text: str) -> str:
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ValueError("write HOST:PORT with a port from 1 to 65535, for example 127.0.0.1:7070")
    return text


Name = Annotated[str, AfterValidator(_name)]
Listen = Annotated[str, AfterValidator(_listen)]
KeyHash = Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")]
Scope = Literal["generate", "chat", "cancel", "resume", "models"]


class Section(BaseModel):
    """Base of all sections: strict types, unknown keys are mistakes."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class BusSection(Section):
    """The message bus."""

    embedded: Literal[True] = Field(True, description="start a nats-server as a child process")
    port: int = Field(4222, ge=1, le=65535, description="where NATS clients connect, on 127.0.0.1")
    store_bytes: int = Field(
        1 << 30,
        ge=1 << 24,
        description="most disk space of each of the two streams: stored requests, usage events",
        json_schema_extra=unit("bytes"),
    )


class ModelSection(Section):
    """A model that pools can serve."""

    source: str = Field(
        min_length=1,
        description="smollm2-135m-instruct (built in), hf:OWNER/NAME, a folder or a .gguf file",
    )
    context: int | None = Field(
        None,
        ge=16,
        description="longest prompt plus answer; default: what the model was made for",
        json_schema_extra=unit("tokens"),
    )
    weights: Literal["auto", "fp32", "fp16"] = Field(
        "auto", description="how weights are kept; auto = fp16 where the CPU has fast kernels"
    )


class ExecutorRange(Section):
    """How many executors a pool has."""

    min: int = Field(1, ge=1, le=64, description="executors that are started")
    max: int = Field(
        1,
        ge=1,
        le=64,
        description="most executors that may be wanted while running; the file alone starts `min`",
    )


class PriceSection(Section):
    """What the pool's accelerators cost."""

    accelerator_hour: float = Field(
        0.0,
        ge=0,
        allow_inf_nan=False,
        description="price of one executor for one hour",
        json_schema_extra=unit("currency per hour"),
    )


class QueueSection(Section):
    """Bounds of a pool's queue; beyond them a request is refused as saturated."""

    requests: int = Field(
        1024, ge=1, le=100_000, description="waiting", json_schema_extra=unit("requests")
    )
    tokens: int = Field(
        4_000_000,
        ge=1,
        description="waiting, prompt plus max_tokens",
        json_schema_extra=unit("tokens"),
    )


class PoolSection(Section):
    """Executors that serve one model alike."""

    model: str = Field(description="a name from `models`")
    executors: ExecutorRange = Field(default_factory=ExecutorRange, description="how many")
    device: Literal["auto", "cpu"] = Field("auto", description="where they compute")
    threads: int = Field(2, ge=1, le=256, description="torch threads of each executor")
    slots: int = Field(
        16, ge=1, le=1024, description="requests an executor runs at once (largest batch)"
    )
    kv_tokens: int = Field(
        65536,
        ge=KV_BLOCK,
        description=f"KV cache of each executor, used in whole blocks of {KV_BLOCK}",
        json_schema_extra=unit("tokens"),
    )
    step_tokens: int = Field(
        1024,
        ge=16,
        le=65536,
        description="token budget of one engine step (prefill chunk and decodes together)",
        json_schema_extra=unit("tokens"),
    )
    zone: Name = Field("default", description="label of where they run, shown in usage rows")
    fraction: float | None = Field(
        None,
        gt=0,
        le=1,
        allow_inf_nan=False,
        description="share of its machine that one executor has; default: threads over cores",
    )
    price: PriceSection = Field(default_factory=PriceSection, description="what they cost")
    buckets: list[Annotated[int, Field(ge=1)]] = Field(
        default_factory=lambda: [512, 2048, 8192],
        min_length=1,
        max_length=32,
        description="upper bounds of length buckets (prompt plus max_tokens); shorter go first",
        json_schema_extra=unit("tokens"),
    )
    queue: QueueSection = Field(default_factory=QueueSection, description="bounds of the queue")


class RouteMatch(Section):
    """Which requests a route takes; what is not named matches all."""

    tenant: str | None = Field(None, description="a name from `tenants`")
    model: str | None = Field(None, description="the model the caller named")
    verb: Literal["generate", "chat"] | None = Field(None, description="kind of call")
    priority: Annotated[Priority | None, Field(strict=False)] = Field(
        None, description="high, normal or low"
    )


class RouteSection(Section):
    """The first route that matches decides pool and defaults."""

    name: Name | None = Field(None, description="shown in decisions; default: route-<position>")
    match: RouteMatch = Field(default_factory=RouteMatch, description="which requests")
    pool: str = Field(description="a name from `pools`")
    over_length: Literal["reject"] = Field(
        "reject", description="what happens to a prompt longer than the model's context"
    )
    max_tokens: int = Field(
        512,
        ge=1,
        description="answer limit where the caller sets none",
        json_schema_extra=unit("tokens"),
    )
    timeout_ms: int = Field(
        120_000,
        ge=1,
        le=3_600_000,
        description="time limit where the caller sets none",
        json_schema_extra=unit("ms"),
    )


def _expiry(text: str) -> str:
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        at = None
    if at is None or at.tzinfo is None:
        raise ValueError('write a quoted time with its zone, for example "2027-01-31T00:00:00Z"')
    return text


class KeySection(Section):
    """An API key. `headrace keys create` writes these."""

    hash: KeyHash = Field(description="SHA-256 of the key, as sha256:<64 hex digits>")
    name: Name | None = Field(None, description="for people; unique in its tenant")
    scopes: list[Scope] | None = Field(
        None, min_length=1, description="calls it may make; default: all"
    )
    expires: Annotated[str, AfterValidator(_expiry)] | None = Field(
        None, description="when it ends (ISO 8601 with zone); default: never"
    )

    @property
    def id(self) -> str:
        """The first 12 digits of the hash: names the key where the hash itself should not go."""
        return key_id(self.hash)

    @property
    def expires_ms(self) -> float | None:
        """Unix ms; None = never."""
        return (
            None if self.expires is None else 1e3 * datetime.fromisoformat(self.expires).timestamp()
        )


def key_id(digest: str) -> str:
    """How a key is named in usage rows, status and logs (`digest`: hex, `sha256:` before it or not)."""
    return digest.removeprefix("sha256:")[:12]


class TenantSection(Section):
    """Who may call."""

    keys: list[KeyHash | KeySection] = Field(
        description="API keys: sha256:<64 hex digits>, or {hash, name, scopes, expires}; "
        "`headrace keys create TENANT` adds one; none = nobody may call"
    )

    def api_keys(self) -> list[KeySection]:
        """All keys in their long form."""
        return [KeySection(hash=key) if isinstance(key, str) else key for key in self.keys]


class IngressSection(Section):
    """Access, validation and token count."""

    replicas: int = Field(1, ge=1, le=16, description="processes")


class QueueingSection(Section):
    """What waits and who is next."""

    replicas: int = Field(
        2, ge=1, le=16, description="processes; one owns a pool's queue, the others stand by for it"
    )


class EgressSection(Section):
    """Client connections and streams."""

    replicas: int = Field(1, ge=1, le=16, description="processes; they share the port")
    grpc: Listen = Field("127.0.0.1:7070", description="where gRPC clients connect")
    http: Listen = Field("127.0.0.1:8080", description="where OpenAI (HTTP) clients connect")
    buffer_chunks: int = Field(
        1024,
        ge=16,
        le=1_000_000,
        description="unsent chunks before a slow gRPC or HTTP client is cancelled",
    )


class StagesSection(Section):
    """The processes around the executors."""

    ingress: IngressSection = Field(default_factory=IngressSection, description="first checks")
    queueing: QueueingSection = Field(
        default_factory=QueueingSection, description="admission, order, leases"
    )
    egress: EgressSection = Field(default_factory=EgressSection, description="doors and streams")
