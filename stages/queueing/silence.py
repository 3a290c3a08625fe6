"""When a request must be ended by us, because its egress does not. Pure."""

from collections.abc import Iterator
from typing import Final

from contracts.client import FinishReason
from stages.queueing.credit import Executor
from stages.queueing.ledger import Entry, Ledger, State

EGRESS_SILENT_S: Final = 15.0  # one that only stalls goes on serving; a dead one is replaced
EGRESS_LIVES_S: Final = 2.0
RECEIPT_OVERDUE_S: Final = 10.0
FORGET_S: Final = 60.0


class Egresses:
    """When each egress incarnation was last heard; one never heard counts from our own start."""

    def __init__(self, clock_s: float) -> None:
        self._start_s = clock_s
        self._heard: dict[str, float] = {}
        self._current: dict[str, str] = {}  # instance → its incarnation
        self._replaced: dict[str, float] = {}

    def hear(self, instance: str, incarnation: str, now_s: float) -> None:
        """A beat came. A new incarnation means that the one before it has ended."""
        before = self._current.get(instance)
        if before is not None and before != incarnation:
            self._replaced[before] = now_s
        self._current[instance] = incarnation
        self._heard[incarnation] = now_s

    def silent(self, incarnation: str, now_s: float) -> bool:
        """Replaced, or not heard for 15 s: its sessions are lost."""
        if incarnation in self._replaced:
            return True
        return now_s - self._heard.get(incarnation, self._start_s) > EGRESS_SILENT_S

    def lives(self, incarnation: str, now_s: float) -> bool:
        """Heard in the last 2 s."""
        return now_s - self._heard.get(incarnation, -EGRESS_LIVES_S) < EGRESS_LIVES_S

    def pardon(self, now_s: float) -> None:
        """The bus was away: nobody could be heard, so silence starts now."""
        self._start_s = now_s
        self._heard = dict.fromkeys(self._heard, now_s)

    def forget_gone(self, now_s: float) -> None:
        """Drop incarnations that have long ended."""
        self._heard = _recent(self._heard, now_s)
        self._replaced = _recent(self._replaced, now_s)


def _recent(times: dict[str, float], now_s: float) -> dict[str, float]:
    return {name: at_s for name, at_s in times.items() if now_s - at_s < FORGET_S}


def overdue(entry: Entry, egresses: Egresses, now_s: float, now_ms: float) -> FinishReason | None:
    """Why we must end this request now; None while its egress still can."""
    if entry.state is State.CLOSING:
        waited = now_s - entry.closing_s
        return entry.closing_reason if waited > RECEIPT_OVERDUE_S else None
    if egresses.silent(entry.work.egress, now_s):
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
