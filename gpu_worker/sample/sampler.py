"""From logits to tokens: greedy rows in one argmax, sampled rows each through its filters."""

from collections.abc import Sequence as Seq

import torch
from torch import Tensor

from gpu_worker.request import Request, SamplingParams, Sequence
from gpu_worker.sample.filters import Candidates, Filter, Temperature, TopK, TopP
from gpu_worker.sample.noise import seed_of, uniform

GREEDY_BELOW = 1e-4  # a temperature so low that only the likeliest token has weight in fp32


def filters_of(params: SamplingParams) -> tuple[Filter, ...]:
    """The filters a request needs, in order; none when it is greedy."""
    if params.temperature < GREEDY_BELOW:
        return ()
    filters: list[Filter] = [Temperature(params.temperature)]
    if params.top_k:
        filters.append(TopK(params.top_k))
    if params.top_p < 1.0:
        filters.append(TopP(params.top_p))
    return tuple(filters)


class RowSampler:
    """How one request draws: its filters and its seed. Holds no other state."""

    def __init__(self, request: Request) -> None:
        given = request.sampling.seed
        self.filters = filters_of(request.sampling)
        self._seed = seed_of(request.id) if given is None else given

    def draw(self, logits: Tensor, position: int) -> int:
        """The token at `position`, from logits [vocab], by inverting the cumulative distribution."""
        candidates = Candidates(logits)
        for each in self.filters:
            candidates = each.apply(candidates)
        mass = torch.cumsum(torch.softmax(candidates.logits.double(), 0), 0)
        target = uniform(self._seed, position) * float(mass[-1])
        index = int(torch.searchsorted(mass, target, right=True))
        index = min(index, mass.numel() - 1)
        return index if candidates.ids is None else int(candidates.ids[index])


class Sampler:
    """Draws for the whole batch; knows the requests that are in the engine."""

    def __init__(self) -> None:
        self._rows: dict[str, RowSampler] = {}

    def add(self, request: Request) -> None:
        """Prepare a request's filters."""
        self._rows[request.id] = RowSampler(request)

    def remove(self, request_id: str) -> None:
        """Forget a request."""
        del self._rows[request_id]

    def known(self) -> frozenset[str]:
        """Ids of the requests it holds state for."""
        return frozenset(self._rows)

    def sample(self, logits: Tensor, sequences: Seq[Sequence]) -> list[int]:
        """One token for each row of logits [S, vocab]; `sequences` are in the same order."""
        tokens: list[int] = torch.argmax(logits, dim=-1).tolist()
        for row, sequence in enumerate(sequences):
            sampler = self._rows[sequence.id]
            if sampler.filters:
                tokens[row] = sampler.draw(logits[row], sequence.total)
        return tokens
