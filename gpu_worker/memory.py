"""The memory plan, made before anything is loaded: what weights and KV take, what fits."""

from dataclasses import dataclass
from pathlib import Path

from gpu_worker.config import EngineConfig
from gpu_worker.model.linear import Scheme
from stages.runtime.models.spec import ModelConfig

WEIGHT_BYTES: dict[Scheme, int] = {"fp32": 4, "fp16": 2}
KV_BYTES = 4  # fp32
MIB = 1 << 20
HEADROOM = 256 * MIB  # activations, torch itself, allocator slack
CGROUP = Path("/sys/fs/cgroup")
MEMINFO = Path("/proc/meminfo")


class MemoryPlanError(ValueError):
    """The configured KV cache cannot fit; the message says how many tokens would."""


@dataclass(frozen=True)
class MemoryPlan:
    """Bytes, and tokens that fit into what was available when the plan was made."""

    weight_bytes: int
    kv_token_bytes: int
    kv_tokens: int
    available_bytes: int

    @property
    def kv_bytes(self) -> int:
        """The whole KV cache; resident only as far as it was written."""
        return self.kv_token_bytes * self.kv_tokens

    @property
    def tokens_that_fit(self) -> int:
        """KV tokens for which there is room beside the weights."""
        room = self.available_bytes - self.weight_bytes - HEADROOM
        return max(0, room // self.kv_token_bytes)

    def lines(self) -> tuple[str, ...]:
        """The plan as text, one fact a line."""
        return (
            f"memory available    {self.available_bytes / MIB:10,.0f} MiB",
            f"weights             {self.weight_bytes / MIB:10,.0f} MiB",
            f"KV cache            {self.kv_bytes / MIB:10,.0f} MiB for {self.kv_tokens:,} tokens, "
            f"{self.kv_token_bytes:,} bytes each",
            f"KV tokens that fit  {self.tokens_that_fit:10,}",
        )


def plan_memory(
    model: ModelConfig, config: EngineConfig, scheme: Scheme, available: int
) -> MemoryPlan:
    """Plan for `available` bytes. Raises MemoryPlanError when the KV cache does not fit."""
    weights = model.parameters
    if model.tied_embeddings:
        # A packed head cannot serve as a table: the embedding stays beside it.
        weights += model.vocab_size * model.hidden_size
    token_bytes = 2 * model.layers * model.kv_heads * model.head_dim * KV_BYTES
    tokens = config.blocks * config.block_size
    plan = MemoryPlan(weights * WEIGHT_BYTES[scheme], token_bytes, tokens, available)
    if tokens == 0:
        raise MemoryPlanError(f"kv_tokens is {config.kv_tokens}, less than one block")
    if tokens > plan.tokens_that_fit:
        raise MemoryPlanError(
            f"kv_tokens {tokens:,} needs {plan.kv_bytes / MIB:,.0f} MiB beside "
            f"{plan.weight_bytes / MIB:,.0f} MiB of weights, but {available / MIB:,.0f} MiB are "
            f"available: at most {plan.tokens_that_fit:,} tokens fit"
        )
    return plan


def available_memory() -> int:
    """Bytes this process may still take: the kernel's estimate, less where a cgroup says so."""
    fields = dict(line.split(":", 1) for line in MEMINFO.read_text().splitlines())
    available = int(fields["MemAvailable"].split()[0]) * 1024
    limit, used = _number(CGROUP / "memory.max"), _number(CGROUP / "memory.current")
    if limit is not None and used is not None:
        available = min(available, max(0, limit - used))
    return available


def _number(path: Path) -> int | None:
    try:
        text = path.read_text().strip()
    except OSError:  # no cgroup v2 here, or not ours to read
        return None
    return int(text) if text.isdigit() else None
