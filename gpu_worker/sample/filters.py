"""What narrows or reshapes the distribution: one small object per feature, applied in order.

Temperature, then top-k, then top-p: the order of Hugging Face transformers.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

FIRST_LOOK = 256  # candidates sorted before a full sort is tried; nearly always enough for top-p


@dataclass(frozen=True)
class Candidates:
    """Tokens still possible. `logits`: float32 [n]; `ids`: int64 [n], None = the whole vocabulary.

    When `ids` is given, logits are in descending order.
    """

    logits: Tensor
    ids: Tensor | None = None


class Filter(Protocol):
    """One sampling feature."""

    def apply(self, candidates: Candidates) -> Candidates:
        """Return the candidates that remain, possibly with other logits."""
        ...


@dataclass(frozen=True)
class Temperature:
    """Divide logits by `value` > 0."""

    value: float

    def apply(self, candidates: Candidates) -> Candidates:
        """Same candidates, sharper (below 1) or flatter (above 1)."""
        return Candidates(candidates.logits / self.value, candidates.ids)


@dataclass(frozen=True)
class TopK:
    """Keep the `count` likeliest tokens."""

    count: int

    def apply(self, candidates: Candidates) -> Candidates:
        """At most `count` candidates, in descending order."""
        return likeliest(candidates, self.count)


@dataclass(frozen=True)
class TopP:
    """Keep the smallest set of likeliest tokens with probability >= `mass` (arXiv 1904.09751)."""

    mass: float

    def apply(self, candidates: Candidates) -> Candidates:
        """The nucleus, in descending order; never empty."""
        scale = torch.logsumexp(candidates.logits.double(), 0)
        best = likeliest(candidates, FIRST_LOOK)
        reached = self._cumulative(best, scale)
        if reached[-1] < self.mass:
            best = likeliest(candidates, candidates.logits.numel())
            reached = self._cumulative(best, scale)
        keep = min(int((reached < self.mass).sum()) + 1, best.logits.numel())
        return Candidates(best.logits[:keep], None if best.ids is None else best.ids[:keep])

    @staticmethod
    def _cumulative(best: Candidates, scale: Tensor) -> Tensor:
        return torch.cumsum(torch.exp(best.logits.double() - scale), 0)


def likeliest(candidates: Candidates, count: int) -> Candidates:
    """The `count` likeliest candidates, in descending order."""
    if candidates.ids is not None:  # already in order
        return Candidates(candidates.logits[:count], candidates.ids[:count])
    logits, ids = torch.topk(candidates.logits, min(count, candidates.logits.numel()))
    return Candidates(logits, ids)
