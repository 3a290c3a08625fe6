"""One call as its client saw it, whatever became of its connection."""

import math
import time
from dataclasses import dataclass, field
from typing import Literal

from contracts.client import Accepted, Chunk, Complete, FinishReason, Refused
from stages.runtime.client import Answer

DoorName = Literal["grpc", "nats", "http"]


@dataclass
class Call:
    """Times in seconds of the monotonic clock. `prompt` is an index into the site's prompts."""

    door: DoorName
    prompt: int
    tokens: int  # asked for, and made: end tokens are ignored
    sent: float = field(default_factory=time.monotonic)
    request_id: str | None = None
    accepted: float = math.inf
    started: float = math.inf  # first text
    ended: float = math.inf
    ids: list[int] = field(default_factory=list)  # not on HTTP
    text: str = ""
    offset: int = 0  # where to resume
    resumed: int = 0
    usage: tuple[int, int] | None = None  # prompt and completion tokens, as the terminal said
    repeats: list[str] = field(default_factory=list)
    problem: str | None = None  # why there was no good terminal

    def accept(self, request_id: str) -> None:
        """The service has taken it."""
        self.request_id = request_id
        self.accepted = min(self.accepted, time.monotonic())

    def add(self, text: str, offset: int, next_offset: int) -> None:
        """New text that begins after `offset` tokens."""
        if offset < self.offset or next_offset < self.offset:
            self.repeats.append(f"tokens {offset} to {next_offset} came after {self.offset}")
        self.started = min(self.started, time.monotonic())
        self.text += text
        self.offset = max(self.offset, next_offset)

    def end(self, reason: str, prompt_tokens: int, completion_tokens: int) -> None:
        """Its terminal."""
        self.ended = time.monotonic()
        self.usage = (prompt_tokens, completion_tokens)
        if reason != FinishReason.LENGTH:
            self.fail(f"ended as {reason}")
        elif completion_tokens != self.tokens:
            self.fail(f"ended after {completion_tokens} of {self.tokens} tokens")

    def fail(self, why: str) -> None:
        """It ended badly; the first reason counts."""
        self.ended = min(self.ended, time.monotonic())
        self.problem = self.problem or why

    def take(self, answer: Answer) -> None:
        """An answer on gRPC or NATS."""
        match answer:
            case Accepted():
                self.accept(answer.request_id)
            case Chunk():
                ids = answer.token_ids or []
                if answer.offset != len(self.ids):
                    self.repeats.append(f"offset {answer.offset} after {len(self.ids)} tokens")
                self.ids += ids
                self.add(answer.text, answer.offset, answer.offset + len(ids))
            case Complete():
                if answer.error is not None:
                    self.fail(f"{answer.error.code}: {answer.error.message}")
                used = answer.usage
                self.end(answer.finish_reason, used.prompt_tokens, used.completion_tokens)
            case Refused():
                self.fail(f"refused: {answer.error.code}: {answer.error.message}")

    @property
    def was_accepted(self) -> bool:
        """Whether its client heard so."""
        return self.accepted < math.inf

    @property
    def running(self) -> bool:
        """Whether text has come and more is to come."""
        return self.started < math.inf and self.ended == math.inf

    def overlaps(self, begin: float, end: float) -> bool:
        """Whether it was under way at some time between the two."""
        return self.sent < end and self.ended > begin
