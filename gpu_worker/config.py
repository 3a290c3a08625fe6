"""Settings of one executor: frozen, validated once, never changed while the engine runs."""

from dataclasses import dataclass
from typing import Literal

from contracts.topology import KV_BLOCK

WeightMode = Literal["auto", "fp32", "fp16"]


Device = Literal["cpu"]  # what this engine computes on today


def device_for(wanted: Literal["auto", "cpu"]) -> Device:
    """The device that `pools.device` means here; `auto` is the best that is supported."""
    return "cpu" if wanted == "auto" else wanted


class ConfigError(ValueError):
    """A setting that cannot work; the message says which one and what would."""


@dataclass(frozen=True)
class EngineConfig:
    """What an engine may use.

    `threads`: torch threads. `kv_tokens`: tokens the KV cache holds, over all requests.
    `block_size`: tokens in a KV block; also the tile of prefill attention, so chunks end on its
    multiples. `max_batch`: requests that run at once (slots). `step_tokens`: rows in one step.
    `prefill_chunk`: prompt rows in a step when nothing decodes; `mixed_chunk`: the same beside
    running decodes, so that their tokens are not held up for long. `context`: longest prompt plus
    answer, where shorter than the model's. `weights`: auto packs fp16 where fbgemm can.
    """

    threads: int = 2
    kv_tokens: int = 65536
    block_size: int = KV_BLOCK
    max_batch: int = 16
    step_tokens: int = 1024
    prefill_chunk: int = 512
    mixed_chunk: int = 128
    context: int | None = None
    weights: WeightMode = "auto"

    def __post_init__(self) -> None:
        positive = {
            "threads": self.threads,
            "kv_tokens": self.kv_tokens,
            "block_size": self.block_size,
            "max_batch": self.max_batch,
            "context": 1 if self.context is None else self.context,
        }
        for name, value in positive.items():
            if value < 1:
                raise ConfigError(f"{name} is {value}; it must be at least 1")
        if self.block_size % 8:
            raise ConfigError(f"block_size is {self.block_size}; it must be a multiple of 8")
        if self.weights not in ("auto", "fp32", "fp16"):
            raise ConfigError(f"weights is {self.weights!r}; it must be auto, fp32 or fp16")
        for name, chunk in (
            ("prefill_chunk", self.prefill_chunk),
            ("mixed_chunk", self.mixed_chunk),
        ):
            if chunk < self.block_size or chunk % self.block_size:
                raise ConfigError(f"{name} is {chunk}; use a multiple of block_size")
        least = self.max_batch + self.block_size
        if self.step_tokens < least:
            raise ConfigError(
                f"step_tokens is {self.step_tokens}; it must be at least max_batch + block_size = "
                f"{least}, or prefill could starve"
            )

    @property
    def blocks(self) -> int:
        """KV blocks in the pool; a remainder of `kv_tokens` below one block is not used."""
        return self.kv_tokens // self.block_size
