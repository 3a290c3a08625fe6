"""A request's logits do not depend on its batch mates: compared bit by bit."""

import random

import pytest
import torch
from torch import Tensor

from gpu_worker.config import EngineConfig, WeightMode
from gpu_worker.engine import Engine
from gpu_worker.request import Request, Sequence
from gpu_worker.sample import Sampler
from stages.runtime.models.spec import ModelSpec
from tests.gpu_worker.helpers import drain

NEEDLE = Request("needle", tuple(range(100, 239)), max_tokens=10, ignore_eos=True)


class Recorder(Sampler):
    """Keeps the needle's logits of every step."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Tensor] = []

    def sample(self, logits: Tensor, sequences: list[Sequence]) -> list[int]:  # type: ignore[override]
        for row, sequence in enumerate(sequences):
            if sequence.id == "needle":
                self.seen.append(logits[row].clone())
        return super().sample(logits, sequences)


def logits_among(engine: Engine, mates: int, before: int, seed: int, vocab: int) -> Tensor:
    """The needle's logits [10, vocab] beside `mates` random requests, added after `before` steps."""
    recorder = Recorder()
    engine._sampler = recorder
    rng = random.Random(seed)
    for i in range(mates):
        prompt = tuple(rng.randrange(vocab) for _ in range(rng.choice([1, 7, 64, 65, 150])))
        engine.add(Request(f"m{i}", prompt, rng.randrange(1, 40), ignore_eos=True))
    for _ in range(before):
        engine.step()
    engine.add(NEEDLE)
    drain(engine)
    return torch.stack(recorder.seen)


Mates = tuple[tuple[int, int, int], ...]  # mates, steps before the needle, seed
ALL: Mates = ((2, 3, 1), (15, 0, 2), (15, 7, 3), (30, 4, 4))
FEW: Mates = ((15, 0, 2), (30, 4, 4))


def check(spec: ModelSpec, weights: WeightMode, block_size: int, cases: Mates) -> None:
    config = EngineConfig(
        kv_tokens=8192,
        max_batch=16,
        block_size=block_size,
        prefill_chunk=2 * block_size,
        mixed_chunk=block_size,
        weights=weights,
    )
    engine = Engine(
        spec, config
    )  # one for all: what earlier runs left in its cache must not matter
    alone = logits_among(engine, 0, 0, 0, spec.config.vocab_size)
    assert len(alone) == NEEDLE.max_tokens
    for mates, before, seed in cases:
        among = logits_among(engine, mates, before, seed, spec.config.vocab_size)
        assert torch.equal(among, alone), f"{mates} mates, {before} steps before"


@pytest.mark.parametrize("weights", ["fp32", "auto"])
def test_tiny_model(tiny: ModelSpec, weights: WeightMode) -> None:
    check(tiny, weights, 16, ALL)


@pytest.mark.slow
@pytest.mark.parametrize("weights", ["fp32", "auto"])
def test_built_in_model(smollm: ModelSpec, weights: WeightMode) -> None:
    check(smollm, weights, 64, FEW)


def test_chunk_sizes_do_not_change_logits(tiny: ModelSpec) -> None:
    results = []
    for chunk in (16, 48, 160):
        config = EngineConfig(
            kv_tokens=1024, block_size=16, prefill_chunk=chunk, mixed_chunk=16, weights="fp32"
        )
        results.append(logits_among(Engine(tiny, config), 0, 0, 0, 256))
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])
