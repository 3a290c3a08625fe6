"""One pool's queue as a state machine: what waits, what runs, who gets the next lease. No bus."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from contracts.client import FinishReason
from contracts.errors import ErrorCode, HeadraceError
from contracts.frames import Credit
from contracts.topology import PoolSection
from stages.queueing.bounds import Bounds
from stages.queueing.credit import Executors, capacity
from stages.queueing.ledger import Entry, Ledger, State
from stages.queueing.order import Order
from stages.queueing.recovery import MAX_TRIES


class Loss(NamedTuple):
    """An attempt whose executor is gone."""

    entry: Entry
    executor: str
    attempt: int


@dataclass(frozen=True)
class Grant:
    """A lease to be asked of an executor."""

    entry: Entry
    executor: str
    attempt: int


class PoolQueue:
    """Every unfinished request of a pool. Times: `now_s` monotonic, `now_ms` unix."""

    def __init__(
        self,
        name: str,
        section: PoolSection,
        *,
        gone: bool = False,
        epoch: int = 0,
        holds: Callable[[], bool] = lambda: True,
        executors: Executors | None = None,
        ended: Mapping[str, int] | None = None,
    ) -> None:
        """`gone`: it has left the topology and admits nothing. `holds`: whether we own it, in this
        epoch, at this moment: asked right before every act."""
        self.name = name
        self.gone = gone
        self.epoch = epoch
        self.holds = holds
        self.adopting = False  # what runs is being found out: nothing is leased
        self._capacity = capacity(section.kv_tokens)
        self.order = Order(section.buckets)
        self.bounds = Bounds(name, section.queue)
        self.executors = executors or Executors()
        self.executors.forget_leases()
        self.ledger = Ledger(ended)
        self.leases = 0
        self.leases_again = 0

    def reconfigure(self, section: PoolSection) -> None:
        """Other limits, buckets and capacity; what waits stays."""
        self._capacity = capacity(section.kv_tokens)
        self.bounds.reconfigure(section.queue)
        self.order.rebucket(section.buckets, lambda name: self._entry(name).tokens)

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
            attempt = max(entry.attempt, entry.floor) + 1
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

    def lose_silent(self, now_s: float) -> list[Loss]:
        """Forget executors not heard for 3 s; what they ran is lost."""
        self.executors.forget_silent(now_s)
        return self._lose_unheld()

    def lose_executor(self, name: str) -> list[Loss]:
        """This executor is gone: what it ran is lost."""
        self.executors.forget(name)
        return self._lose_unheld()

    def give_back(self, executor: str, attempts: Iterable[tuple[str, int]]) -> list[Entry]:
        """The executor ends and has stopped these before they were finished."""
        back = []
        for request_id, attempt in attempts:
            entry = self.ledger.get(request_id)
            if entry is None or (entry.executor, entry.attempt) != (executor, attempt):
                continue
            entry.executor, entry.missing_s, entry.void = None, None, attempt
            entry.tries -= 1  # nobody failed
            if entry.state is State.RUNNING:
                entry.state = State.LOST
                back.append(entry)
        return back

    def adopt(self, executor: str, running: Iterable[tuple[str, int]]) -> int:
        """An executor names what it runs: what we had lost runs there. How many."""
        adopted = 0
        for request_id, attempt in running:
            entry = self.ledger.get(request_id)
            if entry is None or entry.state is not State.LOST:
                continue
            if attempt >= max(entry.attempt, entry.void + 1):
                entry.attempt, entry.executor, entry.state = attempt, executor, State.RUNNING
                entry.tries = max(entry.tries, 1)
                adopted += 1
        return adopted

    def hear(self, credit: Credit, now_s: float) -> bool:
        """Take an executor's word; True when it is news."""
        news = self.executors.hear(credit, now_s)
        if news:
            self.adopt(credit.executor, credit.running)
        return news

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

    def position(self, entry: Entry) -> int:
        """Requests served before it; 0 for one that does not wait."""
        waits = entry.request_id in self.order
        return self.order.position(entry.request_id) if waits else 0

    def leave(self, entry: Entry) -> None:
        """Out of the line, wherever it stands; it stays in the ledger."""
        self._leave(entry)

    def _lose_unheld(self) -> list[Loss]:
        lost = []
        for entry in self.ledger:
            executor = entry.executor
            if executor is not None and not self.executors.lives(executor):
                entry.executor, entry.void = None, entry.attempt
                lost.append(Loss(entry, executor, entry.attempt))
                if entry.state is State.RUNNING:
                    entry.state = State.LOST
        return lost

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
