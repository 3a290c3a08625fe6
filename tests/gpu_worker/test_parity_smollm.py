"""Acceptance: greedy fp32 output equals transformers on the same GGUF weights, token for token."""

import warnings
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from gpu_worker.config import EngineConfig
from gpu_worker.engine import Engine
from gpu_worker.request import Request
from stages.runtime.models.artifacts import load_tokenizer
from stages.runtime.models.spec import ModelSpec
from tests.gpu_worker.helpers import run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

COUNT = 64
TIE = 1e-3  # a mismatch is allowed only where the reference's two best logits are closer than this
PROMPTS = [
    "The capital of France is",
    "Once upon a time, in a village by the sea,",
    "def fibonacci(n):\n    ",
    "1, 1, 2, 3, 5, 8, 13,",
    "Q: Why is the sky blue?\nA:",
    "<|im_start|>user\nWhat is gravity?<|im_end|>\n<|im_start|>assistant\n",
    "Die Katze sitzt auf dem",
    "SELECT name, count(*) FROM",
    "Dear Sir or Madam,\n\nI am writing to",
    "The three laws of thermodynamics are",
    "import numpy as np\n\n# compute the mean of each row\n",
    "E = mc^2 means that",
    "Ingredients: flour, sugar, eggs.\nStep 1:",
    "In 1969, humans first",
    '{"name": "Ada", "born":',
    "To be, or not to be, that is the question:",
    "a",
    "The river turned the mill wheel, and " * 6,
    "List five animals that live in the forest:\n1.",
    "Water flows through the headrace to the wheel. " * 14 + "In summary,",
]


@pytest.fixture(scope="module")
def reference(smollm: ModelSpec) -> Any:
    """transformers' own model with its own reading of the GGUF, in fp32.

    The parts of `from_pretrained(gguf_file=...)`, which as a whole insists on accelerate.
    """
    path = str(smollm.source)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its loader's warnings are not ours
        config = AutoConfig.from_pretrained(smollm.source.parent, gguf_file=smollm.source.name)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        tensors = load_gguf_checkpoint(path, return_tensors=True, model_to_load=model)["tensors"]
    missing, unexpected = model.load_state_dict(tensors, strict=False)
    assert set(missing) <= {"lm_head.weight"}, "only the tied matrix may be absent"
    assert not unexpected
    model.tie_weights()
    return model.eval()


@pytest.fixture(scope="module")
def engine(smollm: ModelSpec) -> Engine:
    """fp32, with chunks small enough that the long prompt is cut."""
    config = EngineConfig(
        kv_tokens=16384, max_batch=20, weights="fp32", prefill_chunk=128, mixed_chunk=64
    )
    return Engine(smollm, config)


@pytest.fixture(scope="module")
def requests(smollm: ModelSpec) -> list[Request]:
    """Twenty prompts, each 64 tokens of output."""
    tokenizer = load_tokenizer(smollm)
    return [
        Request(f"p{i}", tuple(tokenizer.encode(text, special=True)), COUNT, ignore_eos=True)
        for i, text in enumerate(PROMPTS)
    ]


@pytest.fixture(scope="module")
def batched(engine: Engine, requests: list[Request]) -> dict[str, list[int]]:
    """What the engine says to all of them at once, each arriving two steps after the other."""
    return run(engine, *requests, stagger=2)


def mismatches(model: Any, request: Request, tokens: list[int]) -> list[tuple[int, float]]:
    """Positions where the reference, given the same tokens so far, prefers another: (place, gap).

    Teacher forcing: if there is none, the reference's greedy output is exactly `tokens`.
    """
    ids = torch.tensor([request.prompt_ids + tuple(tokens)])
    with torch.inference_mode():
        logits = model(ids, logits_to_keep=len(tokens) + 1).logits[0, :-1]
    best = logits.topk(2, dim=-1)
    gaps = (best.values[:, 0] - best.values[:, 1]).tolist()
    wanted = best.indices[:, 0].tolist()
    return [(i, gaps[i]) for i, token in enumerate(tokens) if token != wanted[i]]


def check(model: Any, requests: list[Request], got: dict[str, list[int]]) -> None:
    found = [
        (request.id, place, gap)
        for request in requests
        for place, gap in mismatches(model, request, got[request.id])
    ]
    print("mismatches (request, place, top-2 gap of the reference):", found or "none")
    assert all(len(tokens) == COUNT for tokens in got.values())
    assert all(gap < TIE for _, _, gap in found)


def test_batched_with_staggered_arrival_is_what_transformers_says(
    reference: Any, requests: list[Request], batched: dict[str, list[int]]
) -> None:
    assert sorted(batched) == sorted(request.id for request in requests)
    check(reference, requests, batched)


def test_alone_is_the_same_token_for_token(
    engine: Engine, requests: list[Request], batched: dict[str, list[int]]
) -> None:
    """fp32 is batch-invariant too, so what was checked above holds for each prompt alone."""
    alone: dict[str, list[int]] = {}
    for request in requests:
        alone |= run(engine, request)
    assert alone == batched


def test_transformers_generate_itself(
    reference: Any, requests: list[Request], batched: dict[str, list[int]]
) -> None:
    """Its own loop, once, beside the teacher forcing above."""
    request = requests[5]
    ids = torch.tensor([request.prompt_ids])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        out = reference.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=COUNT,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
    expected = out[0, ids.shape[1] :].tolist()
    got = batched[request.id]
    if got != expected:
        check(reference, [request], {request.id: got})
