"""Greedy output on tiny random safetensors models equals transformers in fp32."""

import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import LlamaForCausalLM

from gpu_worker.config import EngineConfig
from gpu_worker.engine import Engine
from gpu_worker.request import Request
from stages.runtime.models.store import open_model
from tests.gpu_worker.conftest import TINY, write_tiny
from tests.gpu_worker.helpers import run


def reference(model: LlamaForCausalLM, prompt: list[int], count: int) -> list[int]:
    ids = torch.tensor([prompt])
    out = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=count,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
    )
    tokens: list[int] = out[0, len(prompt) :].tolist()
    return tokens


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("kv_heads", [1, 4])
def test_tiny_safetensors_models_match_transformers(
    tmp_path: Path, tied: bool, kv_heads: int
) -> None:
    model = write_tiny(tmp_path, tied=tied, kv_heads=kv_heads)
    engine = Engine(open_model(str(tmp_path)), TINY)
    rng = random.Random(3)
    prompts = [[rng.randrange(255) for _ in range(n)] for n in (1, 2, 15, 16, 17, 33, 64, 130)]
    requests = [
        Request(f"r{i}", tuple(prompt), max_tokens=12, ignore_eos=True)
        for i, prompt in enumerate(prompts)
    ]
    got = run(engine, *requests, stagger=1)
    assert got == {f"r{i}": reference(model, prompt, 12) for i, prompt in enumerate(prompts)}


def test_an_end_token_stops_generation_and_is_not_delivered(tmp_path: Path) -> None:
    model = write_tiny(tmp_path, tied=False)
    expected = reference(model, [5, 6, 7], 20)
    stop = expected[8]
    spec = open_model(str(tmp_path))
    spec = replace(spec, config=replace(spec.config, eos_ids=(stop,)))
    engine = Engine(spec, TINY)
    request = Request("a", (5, 6, 7), 20)
    outputs = list(engine.stream(request))
    assert [t for o in outputs for t in o.token_ids] == expected[: expected.index(stop)]
    assert outputs[-1].finish == "stop"
    assert outputs[-1].token_ids == ()


def test_fp16_weights_stay_close_to_fp32(tmp_path: Path) -> None:
    write_tiny(tmp_path, tied=True)
    spec = open_model(str(tmp_path))
    prompt = tuple(range(40))
    first = {}
    for weights in ("fp32", "auto"):
        engine = Engine(spec, EngineConfig(kv_tokens=256, weights=weights, context=256))
        first[weights] = run(engine, Request("a", prompt, 1, ignore_eos=True))["a"]
    assert first["fp32"] == first["auto"]
