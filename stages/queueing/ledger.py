"""Every stored request from acceptance to its one end, and the figures that must balance."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from contracts.client import FinishReason
from contracts.internal import Work


class State(Enum):
    """Where an unfinished request is."""

    QUEUED = "queued"  # in the order
    LEASING = "leasing"  # asked of an executor, no answer yet
    RUNNING = "running"  # an executor has it
    LOST = "lost"  # its executor fell silent or runs it no more: its egress is asked what was delivered
    CLOSING = "closing"  # over for us, its receipt is on the way


COUNTER_OF: Final = {
    FinishReason.STOP: "finished",
    FinishReason.LENGTH: "finished",
    FinishReason.CANCELLED: "cancelled",
    FinishReason.TIMEOUT: "expired",
    FinishReason.ERROR: "failed",
}


@dataclass
class Entry:
    """One unfinished request. `work` has its prompt emptied; `raw` is the request as stored."""

    work: Work
    raw: bytes
    prompt_tokens: int
    stream_seq: int
    arrival: int
    state: State = State.QUEUED
    attempt: int = 0  # highest attempt given or seen
    tries: int = 0  # attempts that an executor may have run
    executor: str | None = None
    leased_ms: float | None = None  # when the last lease was asked for, unix
    lease_seq: int = 0  # of the credit in the executor's answer: newer credit must name the request
    missing_s: float | None = None  # since when it does not, monotonic
    resume_ids: list[int] = field(default_factory=list)
    closing_s: float = 0.0  # since when in CLOSING, monotonic
    closing_reason: FinishReason = FinishReason.ERROR
    floor: int = 0  # attempts up to this one may have been given by owners before us
    void: int = 0  # attempts up to this one are over, whatever an executor still says
    unknown: int = 0  # how often in a row no egress knew its session
    homeless_s: float | None = None  # since when its egress is lost, monotonic

    @property
    def request_id(self) -> str:
        """The request's id."""
        return self.work.request_id

    @property
    def tokens(self) -> int:
        """Upper bound of KV tokens, prompt + max_tokens."""
        return self.prompt_tokens + self.work.max_tokens

    def move_to(self, egress: str) -> None:
        """Another egress holds its session from now on."""
        if egress != self.work.egress:
            self.work = self.work.model_copy(update={"egress": egress})
            stored = Work.model_validate_json(self.raw).model_copy(update={"egress": egress})
            self.raw = stored.model_dump_json().encode()
        self.homeless_s, self.unknown = None, 0


class Ledger:
    """accepted = finished + cancelled + failed + expired + running + queued.

    Exact by construction: an entry is counted accepted when it comes in, under one end when it goes
    out, and as running or queued while it is here.
    """

    def __init__(self, ended: Mapping[str, int] | None = None) -> None:
        """`ended`: the figures of the owners before, so that they outlive a takeover."""
        self._entries: dict[str, Entry] = {}
        self.ended = dict.fromkeys(COUNTER_OF.values(), 0)
        for name in self.ended:
            self.ended[name] += (ended or {}).get(name, 0)
        self.accepted = sum(self.ended.values())

    def accept(self, entry: Entry) -> None:
        """A request is stored."""
        assert entry.request_id not in self._entries
        self._entries[entry.request_id] = entry
        self.accepted += 1

    def end(self, request_id: str, reason: FinishReason) -> Entry | None:
        """The one end of a request; None when it is not (or no longer) here."""
        entry = self._entries.pop(request_id, None)
        if entry is not None:
            self.ended[COUNTER_OF[reason]] += 1
        return entry

    def transfer_out(self, request_id: str) -> Entry | None:
        """Another pool has it now: it was never ours. None when it is not here."""
        entry = self._entries.pop(request_id, None)
        if entry is not None:
            self.accepted -= 1
        return entry

    def transfer_in(self, entry: Entry) -> None:
        """It comes from another pool; counted as accepted here."""
        self.accept(entry)

    def get(self, request_id: str) -> Entry | None:
        """An unfinished request."""
        return self._entries.get(request_id)

    def __iter__(self) -> Iterator[Entry]:
        return iter(list(self._entries.values()))

    def __len__(self) -> int:
        return len(self._entries)

    def counters(self) -> dict[str, float]:
        """The conservation law's figures since the pool's first owner."""
        running = sum(e.executor is not None for e in self._entries.values())
        return {
            "accepted": self.accepted,
            **self.ended,
            "running": running,
            "queued": len(self._entries) - running,
        }
