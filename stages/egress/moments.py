"""When things happened to a request, and the figures that follow (all in ms).

Moments are wall clock, of several processes: when a clock was set back, a duration is 0, not less.
"""

from dataclasses import dataclass

from contracts.client import Timings
from contracts.internal import Stamps


@dataclass(slots=True)
class Moments:
    """Unix ms; None until it happened. `received` is the arrival at the door."""

    received: float
    started: float | None = None  # first engine step
    first_sent: float | None = None  # executor's frame with the first token
    last_sent: float | None = None
    first_chunk: float | None = None  # handed to the client's door
    last_chunk: float | None = None
    finished: float | None = None
    first_tokens: int = 0  # delivered with the first chunk
    last_tokens: int = 0  # delivered with the last chunk
    taken_over: bool = False  # another egress sent the first chunk, when is not known here

    def frame(self, started: float, sent: float) -> None:
        """An executor's frame with tokens of this request."""
        if self.started is None:
            self.started, self.first_sent = started, sent
        self.last_sent = sent

    def chunk(self, tokens: int, now: float) -> None:
        """A chunk was made; `tokens` are delivered with it and those before."""
        if self.first_chunk is None:
            self.first_chunk, self.first_tokens = now, tokens
        self.last_chunk, self.last_tokens = now, tokens

    def timings(self, stamps: Stamps) -> Timings:
        """Only after the end. TPOT is over the tokens after the first chunk."""
        assert self.finished is not None
        stored = stamps.stored or self.received
        return Timings(
            queue_ms=_between(stored, self.started),
            ttft_ms=None if self.taken_over else _between(self.received, self.first_chunk),
            tpot_ms=None if self.taken_over else self._tpot(),
            e2e_ms=round(max(0.0, self.finished - self.received), 3),
            stages=self._stages(stamps, self.finished),
        )

    def _tpot(self) -> float | None:
        later = self.last_tokens - self.first_tokens
        if self.first_chunk is None or self.last_chunk is None or later <= 0:
            return None
        return round(max(0.0, self.last_chunk - self.first_chunk) / later, 3)

    def _stages(self, stamps: Stamps, finished: float) -> dict[str, float]:
        """Parts that add up to the whole; the stage that it ended in has the time until the end."""
        marks = {
            "ingress": stamps.ingress,
            "routing": stamps.routing,
            "queueing": stamps.stored,
            "queue": self.started,
            "prefill": self.first_sent,
            "decode": self.last_sent,
            "egress": finished,
        }
        parts: dict[str, float] = {}
        before = self.received
        for stage, left in marks.items():
            until = max(before, finished if left is None else left)
            parts[stage] = round(until - before, 3)
            before = until
            if left is None:
                break
        return parts


def _between(start: float, end: float | None) -> float | None:
    return None if end is None else round(max(0.0, end - start), 3)
