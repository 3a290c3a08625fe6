"""What is asked of the engine, and the counters of a request that runs."""

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt

FinishReason = Literal["stop", "length", "cancelled"]
RefusalCode = Literal["invalid_request", "context_length_exceeded", "conflict"]
Ids = npt.NDArray[np.int64]


class RequestRefusedError(ValueError):
    """The engine can never run this request; `code` is one of the service's error codes."""

    def __init__(self, code: RefusalCode, message: str) -> None:
        super().__init__(message)
        self.code: RefusalCode = code


@dataclass(frozen=True)
class SamplingParams:
    """How the next token is chosen. `temperature` 0 is greedy; `top_k` 0 and `top_p` 1 are off.

    `seed` None derives one from the request id, so a later attempt draws the same tokens.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int | None = None

    def __post_init__(self) -> None:
        if not 0.0 <= self.temperature <= 100.0:
            raise RequestRefusedError("invalid_request", "temperature must be between 0 and 100")
        if not 0.0 < self.top_p <= 1.0:
            raise RequestRefusedError("invalid_request", "top_p must be above 0 and at most 1")
        if self.top_k < 0:
            raise RequestRefusedError("invalid_request", "top_k must be 0 (off) or more")


@dataclass(frozen=True)
class Request:
    """One generation. `max_tokens` bounds the output, tokens of earlier attempts included.

    `resume_ids`: output tokens that an earlier attempt already delivered. They count as output and
    keep their positions, so sampling draws go on where they stopped.
    The model's own end tokens end the text unless `ignore_eos`.
    """

    id: str
    prompt_ids: tuple[int, ...]
    max_tokens: int
    sampling: SamplingParams = field(default_factory=SamplingParams)
    ignore_eos: bool = False
    resume_ids: tuple[int, ...] = ()


class Sequence:
    """A request inside the engine. Always: computed <= scheduled <= total <= capacity.

    `ids` int64 [capacity] holds prompt, then output. `total`: tokens known so far; `computed`:
    tokens whose KV is in the cache; `scheduled`: those plus what the running step adds.
    `blocks` int64 [n]: KV blocks in order, empty while the request waits.
    """

    def __init__(self, request: Request, stop_ids: frozenset[int]) -> None:
        self.request = request
        self.stop_ids = stop_ids
        self.prompt_tokens = len(request.prompt_ids)
        self.capacity = self.prompt_tokens + request.max_tokens
        self.ids: Ids = np.zeros(self.capacity, dtype=np.int64)
        self.total = self.prompt_tokens + len(request.resume_ids)
        self.ids[: self.total] = request.prompt_ids + request.resume_ids
        self.computed = 0
        self.scheduled = 0
        self.blocks: Ids = np.empty(0, dtype=np.int64)
        self.busy_us = 0

    @property
    def id(self) -> str:
        """The request's id."""
        return self.request.id

    @property
    def output_tokens(self) -> int:
        """Output so far, tokens of earlier attempts included."""
        return self.total - self.prompt_tokens

    def commit(self, token: int) -> FinishReason | None:
        """Take a sampled token; say why generation ends, if it does. A stop token is not kept."""
        if token in self.stop_ids:
            return "stop"
        self.ids[self.total] = token
        self.total += 1
        return "length" if self.output_tokens >= self.request.max_tokens else None
