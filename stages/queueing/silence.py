"""When a request must be ended by us, because its egress does not. Pure."""

from collections.abc import Iterator
from typing import Final

from contracts.client import FinishReason
from stages.queueing.credit import Executor
from stages.queueing.ledger import Entry, Ledger, State

EGRESS_SILENT_S: Final = 15.0  # one that only stalls goes on serving; a dead one is replaced
EGRESS_LIVES_S: Final = 2.0
REPLACED_S: Final = 1.2  # two beats: its successor beats already, so it does not only stall
HOMELESS_S: Final = 10.0
RECEIPT_OVERDUE_S: Final = 10.0
FORGET_S: Final = 60.0


class Egresses:
    """When each egress incarnation was last heard; one never heard counts from our own start."""

    def __init__(self, clock_s: float) -> None:
        self._start_s = clock_s
        self._heard: dict[str, float] = {}
        self._current: dict[str, str] = {}  # instance → its incarnation
        self._replaced: dict[str, float] = {}
        self._gone: dict[str, float] = {}
        self._open: set[str] = set()  # ready, and not about to end

    def hear(self, instance: str, incarnation: str, now_s: float, *, open_: bool = True) -> None:
        """A beat came; `open_`: it takes sessions. A new incarnation means that the one before it
        has ended, once that is not heard any more."""
        before = self._current.get(instance)
        if incarnation not in self._heard:
            if before is not None:
                self._replaced[before] = now_s
            self._current[instance] = incarnation
        self._heard[incarnation] = now_s
        self._gone.pop(incarnation, None)
        if open_:
            self._open.add(incarnation)
        else:
            self._open.discard(incarnation)

    def gone(self, incarnation: str, now_s: float) -> None:
        """Its connection broke and it is not back: it has ended."""
        self._gone[incarnation] = now_s
        self._open.discard(incarnation)

    def silent(self, incarnation: str, now_s: float) -> bool:
        """Ended, or not heard for 15 s: its sessions are lost."""
        if incarnation in self._gone:
            return True
        heard_s = self._heard.get(incarnation, self._start_s)
        if incarnation in self._replaced and now_s - heard_s > REPLACED_S:
            return True
        return now_s - heard_s > EGRESS_SILENT_S

    def lives(self, incarnation: str, now_s: float) -> bool:
        """Heard in the last 2 s."""
        if incarnation in self._gone:
            return False
        return now_s - self._heard.get(incarnation, -EGRESS_LIVES_S) < EGRESS_LIVES_S

    def living(self, now_s: float) -> list[str]:
        """All that live."""
        return [name for name in self._heard if self.lives(name, now_s)]

    def open(self, now_s: float) -> list[str]:
        """All that live and take sessions."""
        return [name for name in self.living(now_s) if name in self._open]

    def knows(self, incarnation: str) -> bool:
        """Whether it was heard in the last minute."""
        return incarnation in self._heard

    def heard_s(self, incarnation: str) -> float:
        """When it was last heard; never = minus infinity."""
        return self._heard.get(incarnation, float("-inf"))

    def pardon(self, now_s: float) -> None:
        """The bus was away: nobody could be heard, so silence starts now."""
        self._start_s = now_s
        self._heard = dict.fromkeys(self._heard, now_s)

    def forget_gone(self, now_s: float) -> None:
        """Drop incarnations that have long ended."""
        self._heard = _recent(self._heard, now_s)
        self._replaced = _recent(self._replaced, now_s)
        self._gone = _recent(self._gone, now_s)
        self._open &= self._heard.keys()


def _recent(times: dict[str, float], now_s: float) -> dict[str, float]:
    return {name: at_s for name, at_s in times.items() if now_s - at_s < FORGET_S}


def overdue(entry: Entry, now_s: float, now_ms: float) -> FinishReason | None:
    """Why we must end this request now; None while an egress still can."""
    if entry.state is State.CLOSING:
        waited = now_s - entry.closing_s
        return entry.closing_reason if waited > RECEIPT_OVERDUE_S else None
    if entry.homeless_s is not None and now_s - entry.homeless_s > HOMELESS_S:
        return FinishReason.ERROR
    if now_ms > entry.work.deadline_ms + RECEIPT_OVERDUE_S * 1000:
        return FinishReason.TIMEOUT
    return None


def strays(executor: Executor, ledger: Ledger) -> Iterator[tuple[str, int | None]]:
    """What an executor runs in vain: requests that have ended (None = in every attempt), and attempts
    older than the one that counts.
    """
    for name, attempt in executor.credit.running:
        entry = ledger.get(name)
        if entry is None:
            yield name, None
        elif attempt < entry.attempt:
            yield name, attempt
