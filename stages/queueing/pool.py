"""One pool's queue as a state machine: what waits, what runs, who gets the next lease. No bus."""

from dataclasses import dataclass

from contracts.client import FinishReason
from contracts.errors import ErrorCode, HeadraceError
from contracts.topology import PoolSection
from stages.queueing.bounds import Bounds
from stages.queueing.credit import Executors, capacity
from stages.queueing.ledger import Entry, Ledger, State
from stages.queueing.order import Order
from stages.queueing.recovery import MAX_TRIES


@dataclass(frozen=True)
class Grant:
    """A lease to be asked of an executor."""

    entry: Entry
    executor: str
    attempt: int


class PoolQueue:
    """Every unfinished request of a pool. Times: `now_s` monotonic, `now_ms` unix."""

    def __init__(self, name: str, section: PoolSection, *, gone: bool = False) -> None:
        """`gone`: it has left the topology; what runs may end, nothing is leased."""
        self.name = name
        self.gone = gone
        self._capacity = capacity(section.kv_tokens)
        self.order = Order(section.buckets)
        self.bounds = Bounds(name, section.queue)
        self.executors = Executors()
        self.ledger = Ledger()
        self.leases = 0
        self.leases_again = 0

    def take(self, tokens: int, now_s: float) -> None:
        """Count a request that is about to be stored. Raises saturated, and context_length_exceeded
        for one that no executor of the pool could ever hold: it would stand at the head for good.
        """
        if tokens > self._capacity:
            raise HeadraceError(
                ErrorCode.CONTEXT_LENGTH_EXCEEDED,
                f"prompt and max_tokens are {tokens} tokens; executors of pool {self.name!r} hold "
                f"{self._capacity}: shorten the prompt or ask for less",
                field="max_tokens",
            )
        self.bounds.take(tokens, now_s)

    def accept(self, entry: Entry) -> int:
        """Take in a stored request that `bounds` has counted; returns its position."""
        self.ledger.accept(entry)
        self._line_up(entry)
        return self.order.position(entry.request_id)

    def accept_lost(self, entry: Entry) -> None:
        """Take in a stored request found at the start."""
        self.ledger.accept(entry)

    def grant(self, now_s: float, now_ms: float) -> Grant | None:
        """Give the next request to the best executor; None while nobody can take the head.

        What is past its deadline is not given away: its egress ends it, the receipt comes.
        """
        while (head := self.order.head()) is not None:
            entry = self._entry(head)
            if entry.work.deadline_ms <= now_ms:
                self.close(entry, FinishReason.TIMEOUT, now_s)
                continue
            executor = self.executors.choose(entry.tokens)
            if executor is None:
                return None
            self._leave(entry)
            entry.state = State.LEASING
            attempt = entry.attempt + 1
            self.executors.lease(executor, head, attempt, entry.tokens)
            return Grant(entry, executor, attempt)
        return None

    def taken(self, grant: Grant, now_s: float, seq: int) -> bool:
        """The executor took the lease and answered with credit number `seq`.

        False when the request ended meanwhile: stop it there.
        """
        entry = self._answered(grant)
        entry.attempt = grant.attempt
        entry.tries += 1
        self.leases += 1
        self.leases_again += entry.tries > 1
        self.bounds.drain.note(now_s)
        if self.ledger.get(entry.request_id) is not entry:
            return False
        entry.executor = grant.executor
        if entry.state is not State.LEASING:
            return False
        entry.state = State.RUNNING
        entry.lease_seq, entry.missing_s = seq, None
        return True

    def declined(self, grant: Grant) -> None:
        """The executor did not take it and never will have run it: back to its old place."""
        entry = self._answered(grant)
        self.executors.block(grant.executor)
        self._back(entry)

    def unanswered(self, grant: Grant) -> bool:
        """No answer: it may run there. Back under a higher attempt; False when tried too often."""
        entry = self._answered(grant)
        self.executors.block(grant.executor)
        entry.attempt = grant.attempt
        entry.tries += 1
        if entry.tries >= MAX_TRIES:
            return False
        self._back(entry)
        return True

    def lose_silent(self, now_s: float) -> list[str]:
        """Forget executors not heard for 3 s; what they ran is lost. Returns their names."""
        names = self.executors.forget_silent(now_s)
        for entry in self.ledger:
            if entry.executor is not None and entry.executor not in self.executors.known:
                entry.executor = None
                if entry.state is State.RUNNING:
                    entry.state = State.LOST
        return names

    def lose_missing(self, now_s: float) -> list[Entry]:
        """Requests that their executor, heard since it took them, has not named for 2 s.

        They have ended there and nobody told us: the last frame or the receipt was lost. Their egress
        knows which.
        """
        lost = [entry for entry in self.ledger if self.executors.overlooks(entry, now_s)]
        for entry in lost:
            entry.executor, entry.missing_s, entry.state = None, None, State.LOST
        return lost

    def pardon(self, now_s: float) -> None:
        """The bus was away: nothing could be heard, so every wait starts now."""
        self.executors.pardon(now_s)
        for entry in self.ledger:
            entry.missing_s = None

    def line_up_again(self, entry: Entry) -> None:
        """A lost request waits again, at the place its arrival gives it."""
        assert entry.state is State.LOST
        self.bounds.put(entry.tokens)
        self._line_up(entry)

    def close(self, entry: Entry, reason: FinishReason, now_s: float) -> None:
        """Never lease it again; its receipt is on the way, within 10 s from now."""
        self._leave(entry)
        entry.state = State.CLOSING
        entry.closing_reason = reason
        entry.closing_s = now_s

    def end(self, request_id: str, reason: FinishReason) -> Entry | None:
        """The receipt is there. None when it is not (or no longer) ours."""
        entry = self.ledger.end(request_id, reason)
        if entry is not None:
            self._leave(entry)
            entry.state = State.CLOSING
        return entry

    def counters(self) -> dict[str, float]:
        """The conservation law's figures, and leases."""
        return {**self.ledger.counters(), "leases": self.leases, "leases_again": self.leases_again}

    def detail(self) -> str:
        """One line for an operator."""
        known = self.executors.known.values()
        slots = sum(executor.free()[0] for executor in known)
        kv_tokens = sum(executor.free()[1] for executor in known)
        return (
            f"{len(self.order)} waiting ({self.bounds.tokens} tokens), {len(self.ledger)} unfinished, "
            f"{len(known)} executors with {slots} free slots and {kv_tokens} free KV tokens"
        )

    def _entry(self, request_id: str) -> Entry:
        entry = self.ledger.get(request_id)
        assert entry is not None
        return entry

    def _answered(self, grant: Grant) -> Entry:
        self.executors.answered(grant.executor, grant.entry.request_id)
        return grant.entry

    def _back(self, entry: Entry) -> None:
        """From LEASING to the queue, unless it ended or is closing meanwhile."""
        if entry.state is State.LEASING:
            self.bounds.put(entry.tokens)
            self._line_up(entry)

    def _line_up(self, entry: Entry) -> None:
        entry.state = State.QUEUED
        self.order.add(entry.request_id, entry.work.priority, entry.tokens, entry.arrival)

    def _leave(self, entry: Entry) -> None:
        if self.order.remove(entry.request_id):
            self.bounds.give(entry.tokens)
