"""Sampling: noise is a function of (seed, position), and draws follow the exact distribution."""

from collections import Counter
from itertools import product

import numpy as np
import pytest
import torch

from gpu_worker.engine import Engine
from gpu_worker.request import Request, RequestRefusedError, SamplingParams
from gpu_worker.sample.noise import mix, seed_of, uniform
from gpu_worker.sample.sampler import RowSampler, filters_of
from tests.gpu_worker.helpers import run

VOCAB = 600  # more than the first look of top-p
DRAWS = 4000


def exact(logits: np.ndarray, params: SamplingParams) -> np.ndarray:
    """The distribution in float64, from the definitions."""
    scaled = logits.astype(np.float64) / params.temperature
    order = np.argsort(-scaled, kind="stable")
    if params.top_k:
        order = order[: params.top_k]
    weights = np.exp(scaled[order] - scaled[order[0]])
    weights /= weights.sum()
    if params.top_p < 1:
        keep = int(np.searchsorted(np.cumsum(weights), params.top_p)) + 1
        order, weights = order[:keep], weights[:keep] / weights[:keep].sum()
    out = np.zeros(len(logits))
    out[order] = weights
    return out


def chi_square_bound(cells: int) -> float:
    """The 99.99 % quantile for cells - 1 degrees of freedom (Wilson and Hilferty, 1931)."""
    df = cells - 1
    return df * (1 - 2 / (9 * df) + 3.719 * (2 / (9 * df)) ** 0.5) ** 3


COMBINATIONS = list(product([0.3, 1.0, 1.7], [0, 5, 300], [0.2, 0.9, 1.0]))


@pytest.mark.parametrize(("temperature", "top_k", "top_p"), COMBINATIONS)
def test_draws_follow_the_exact_distribution(temperature: float, top_k: int, top_p: float) -> None:
    params = SamplingParams(temperature, top_k, top_p, seed=11)
    logits = torch.randn(VOCAB, generator=torch.Generator().manual_seed(5)) * 3
    expected = exact(logits.numpy(), params) * DRAWS
    sampler = RowSampler(Request("a", (1,), 1, params))
    drawn = Counter(sampler.draw(logits, position) for position in range(DRAWS))
    observed = np.array([drawn[i] for i in range(VOCAB)])
    assert observed[expected == 0].sum() == 0, "a filtered token was drawn"
    big = expected >= 5  # cells too small for the statistic are put together
    cells_expected = np.append(expected[big], expected[~big].sum())
    cells_observed = np.append(observed[big], observed[~big].sum())
    some = cells_expected > 1
    if some.sum() < 2:
        return  # nothing but one token is left to draw
    chi = ((cells_observed - cells_expected)[some] ** 2 / cells_expected[some]).sum()
    assert chi < chi_square_bound(int(some.sum()))


def test_flat_distributions_need_the_full_sort_of_top_p() -> None:
    params = SamplingParams(1.0, 0, 0.9, seed=1)
    logits = torch.zeros(VOCAB)
    logits[0] = 0.001
    sampler = RowSampler(Request("a", (1,), 1, params))
    assert len({sampler.draw(logits, i) for i in range(5000)}) > 0.85 * VOCAB


def test_noise_depends_on_nothing_but_seed_and_position() -> None:
    assert uniform(1, 2) == uniform(1, 2)
    assert len({uniform(s, p) for s in range(50) for p in range(50)}) == 2500
    assert seed_of("a") == seed_of("a") != seed_of("b")
    values = np.array([uniform(seed, position) for seed in range(40) for position in range(100)])
    counts = np.histogram(values, bins=20, range=(0, 1))[0]
    assert ((counts - 200) ** 2 / 200).sum() < chi_square_bound(20)
    assert abs(np.corrcoef(values[:-1], values[1:])[0, 1]) < 0.06
    assert mix(0) == 0 and len({mix(i) for i in range(1000)}) == 1000  # noqa: PT018


def test_negative_and_large_seeds_work() -> None:
    assert 0 <= uniform(-5, 0) < 1
    assert 0 <= uniform(1 << 80, 0) < 1


@pytest.mark.parametrize(
    "wrong",
    [
        {"temperature": -1.0},
        {"temperature": float("nan")},
        {"top_p": 0.0},
        {"top_p": 1.5},
        {"top_k": -1},
    ],
)
def test_parameters_out_of_range_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(RequestRefusedError) as error:
        SamplingParams(**wrong)  # type: ignore[arg-type]
    assert error.value.code == "invalid_request"


def test_tiny_temperatures_are_greedy() -> None:
    assert filters_of(SamplingParams(1e-9)) == ()
    assert len(filters_of(SamplingParams(0.5, 3, 0.5))) == 3


def request(name: str, **more: object) -> Request:
    params = SamplingParams(temperature=1.2, top_k=40, top_p=0.95, seed=77)
    return Request(name, tuple(range(30)), 24, params, ignore_eos=True, **more)  # type: ignore[arg-type]


def test_same_seed_same_tokens_alone_and_batched(engine: Engine) -> None:
    alone = run(engine, request("a"))["a"]
    mates = [Request(f"m{i}", (9, i), 20, SamplingParams(0.9), ignore_eos=True) for i in range(5)]
    assert run(engine, *mates, request("b"), stagger=1)["b"] == alone
    other = Request("c", tuple(range(30)), 24, SamplingParams(1.2, 40, 0.95, 78), ignore_eos=True)
    assert run(engine, other)["c"] != alone


@pytest.mark.parametrize("done", [0, 1, 2, 13, 23])
def test_a_resumed_request_goes_on_with_the_same_tokens(engine: Engine, done: int) -> None:
    whole = run(engine, request("a"))["a"]
    rest = run(engine, request("b", resume_ids=tuple(whole[:done])))["b"]
    assert whole[:done] + rest == whole
