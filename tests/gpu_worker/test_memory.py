"""The memory plan, and settings that cannot work."""

import pytest

from gpu_worker.config import ConfigError, EngineConfig
from gpu_worker.memory import MIB, MemoryPlanError, available_memory, plan_memory
from stages.runtime.models.spec import ModelSpec


def test_the_plan_counts_bytes_per_token(tiny: ModelSpec) -> None:
    plan = plan_memory(tiny.config, EngineConfig(kv_tokens=640), "fp32", 1024 * MIB)
    assert plan.kv_token_bytes == 2 * 2 * 2 * 16 * 4  # layers, k and v, kv heads, head_dim, fp32
    assert plan.kv_bytes == 640 * plan.kv_token_bytes
    assert plan.tokens_that_fit > 640
    assert any("KV cache" in line and "640 tokens" in line for line in plan.lines())


def test_a_cache_that_cannot_fit_is_refused_with_the_number_that_does(tiny: ModelSpec) -> None:
    with pytest.raises(MemoryPlanError, match=r"at most [\d,]+ tokens fit"):
        plan_memory(tiny.config, EngineConfig(kv_tokens=10_000_000), "fp32", 512 * MIB)
    with pytest.raises(MemoryPlanError, match="less than one block"):
        plan_memory(tiny.config, EngineConfig(kv_tokens=8), "fp32", 512 * MIB)


def test_this_machine_has_memory() -> None:
    assert available_memory() > 64 * MIB


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"threads": 0}, "threads"),
        ({"block_size": 12}, "block_size"),
        ({"prefill_chunk": 100}, "prefill_chunk"),
        ({"mixed_chunk": 0}, "mixed_chunk"),
        ({"step_tokens": 70}, "step_tokens"),
        ({"weights": "int3"}, "weights"),
        ({"context": 0}, "context"),
    ],
)
def test_settings_are_checked_once_and_named(settings: dict[str, int], word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        EngineConfig(**settings)  # type: ignore[arg-type]
