"""A client that keeps its own record of everything it receives."""

import contextlib
import time
from dataclasses import dataclass, field
from itertools import pairwise

from contracts.client import Accepted, CallOptions, Chunk, Complete, GenerateRequest, Refused
from stages.runtime.client import Answer, GrpcCaller, NatsCaller

Caller = GrpcCaller | NatsCaller


@dataclass
class Record:
    """One call, as the client saw it. Times in seconds of the monotonic clock."""

    request: CallOptions
    sent: float
    request_id: str | None = None
    token_times: list[float] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    ended: float | None = None
    complete: Complete | None = None
    refused: Refused | None = None

    def take(self, answer: Answer) -> None:
        """Note one answer."""
        now = time.perf_counter()
        match answer:
            case Accepted():
                self.request_id = answer.request_id
            case Chunk():
                self.token_times.append(now)
                self.token_ids += answer.token_ids or []
                self.text += answer.text
            case Complete():
                self.complete, self.ended = answer, now
            case Refused():
                self.refused, self.ended = answer, now

    @property
    def ttft_ms(self) -> float:
        """From sending to the first token. Raises RuntimeError if there was none."""
        if not self.token_times:
            raise RuntimeError(f"a call without a token: {self.refused or self.complete}")
        return 1e3 * (self.token_times[0] - self.sent)

    @property
    def gaps_ms(self) -> list[float]:
        """Between chunks."""
        return [1e3 * (after - before) for before, after in pairwise(self.token_times)]


async def run_call(caller: Caller, request: GenerateRequest) -> Record:
    """Run a call to its end."""
    record = Record(request, time.perf_counter())
    async with contextlib.aclosing(caller.generate(request)) as answers:
        async for answer in answers:
            record.take(answer)
    return record
