"""Callers that check every chunk they get, many at once."""

import asyncio
import time
from contextlib import aclosing
from dataclasses import dataclass, field

from contracts.client import Chunk, FinishReason, GenerateRequest
from stages.cli.bench.calls import Caller, Record
from stages.runtime.client import CallerError

PROMPT = "The history of the water wheel begins"


def asking(tokens: int, number: int = 0) -> GenerateRequest:
    """A request whose answer has exactly `tokens` tokens; `number` makes prompts differ."""
    return GenerateRequest(
        prompt=f"{PROMPT} {number}",
        max_tokens=tokens,
        temperature=0.0,
        ignore_eos=True,
        token_ids=True,
    )


@dataclass
class Watched:
    """One call and what was wrong with it."""

    record: Record
    faults: list[str] = field(default_factory=list)

    @property
    def started(self) -> bool:
        """Whether text has come."""
        return bool(self.record.token_ids)

    def verdict(self, tokens: int) -> list[str]:
        """Everything that is wrong with a call that has ended; empty = it was perfect."""
        said = list(self.faults)
        end = self.record.complete
        if end is None:
            said.append(f"no terminal ({self.record.refused})")
        elif end.finish_reason is not FinishReason.LENGTH:
            said.append(f"ended as {end.finish_reason}: {end.error}")
        elif end.usage.completion_tokens != tokens or len(self.record.token_ids) != tokens:
            got = len(self.record.token_ids)
            said.append(f"{got} tokens came, {end.usage.completion_tokens} billed of {tokens}")
        return said


async def follow(caller: Caller, watched: Watched) -> Watched:
    """Read a call to its end; whatever happens is noted, never raised."""
    record = watched.record
    assert isinstance(record.request, GenerateRequest)
    try:
        async with aclosing(caller.generate(record.request)) as answers:
            async for answer in answers:
                if isinstance(answer, Chunk) and answer.offset != len(record.token_ids):
                    watched.faults.append(f"offset {answer.offset} after {len(record.token_ids)}")
                record.take(answer)
    except (CallerError, AssertionError) as error:
        watched.faults.append(repr(error))
    return watched


class Traffic:
    """Calls in the background."""

    def __init__(self) -> None:
        self.calls: list[Watched] = []
        self._tasks: list[asyncio.Task[Watched]] = []

    def send(self, caller: Caller, request: GenerateRequest) -> Watched:
        """Start a call."""
        watched = Watched(Record(request, time.perf_counter()))
        self.calls.append(watched)
        self._tasks.append(asyncio.get_running_loop().create_task(follow(caller, watched)))
        return watched

    @property
    def running(self) -> int:
        """Calls that have not ended."""
        return sum(not task.done() for task in self._tasks)

    async def ended(self, limit_s: float = 120.0) -> None:
        """Wait for all."""
        _, late = await asyncio.wait(self._tasks, timeout=limit_s)
        for task in late:
            task.cancel()

    def faults(self, tokens: int) -> dict[str, list[str]]:
        """What was wrong, by request."""
        verdicts = {
            each.record.request_id or f"call {number}": each.verdict(tokens)
            for number, each in enumerate(self.calls)
        }
        return {name: said for name, said in verdicts.items() if said}
