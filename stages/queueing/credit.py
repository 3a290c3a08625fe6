"""What each executor can take: its own word, minus leases it has not answered yet."""

from dataclasses import dataclass, field
from typing import Final

from contracts.frames import Credit
from contracts.topology import KV_BLOCK
from stages.queueing.ledger import Entry, State

SILENT_S: Final = 3.0
MISSING_S: Final = 2.0  # long enough for the receipt of a request that has just ended


def reserved(tokens: int) -> int:
    """KV tokens an executor sets aside for a request of `tokens` (prompt + max_tokens)."""
    return -(-tokens // KV_BLOCK) * KV_BLOCK


def capacity(kv_tokens: int) -> int:
    """The longest request (prompt + max_tokens) for a KV cache of `kv_tokens`."""
    return kv_tokens // KV_BLOCK * KV_BLOCK


@dataclass
class Executor:
    """One executor as last heard."""

    credit: Credit
    heard_s: float
    in_flight: dict[str, tuple[int, int]] = field(default_factory=dict)  # id → (attempt, KV tokens)
    blocked: bool = False  # it refused or did not answer: wait for its next word

    def unseen(self) -> list[int]:
        """KV tokens of each lease that the credit does not know of yet."""
        running = set(self.credit.running)
        return [
            n for name, (attempt, n) in self.in_flight.items() if (name, attempt) not in running
        ]

    def free(self) -> tuple[int, int]:
        """(slots, KV tokens) that may still be given away."""
        unseen = self.unseen()
        return self.credit.free_slots - len(unseen), self.credit.free_kv_tokens - sum(unseen)

    def can_take(self, tokens: int) -> bool:
        """Whether a request of `tokens` (prompt + max_tokens) fits now."""
        if self.blocked or self.credit.draining:
            return False
        slots, kv_tokens = self.free()
        return slots > 0 and kv_tokens >= reserved(tokens)


class Executors:
    """The executors of one pool."""

    def __init__(self) -> None:
        self.known: dict[str, Executor] = {}
        self._expected: dict[str, float] = {}  # told of by an inventory, no credit yet; since when
        self.vanished_s = float("-inf")  # when the last one was heard that left without a word

    def hear(self, credit: Credit, now_s: float) -> bool:
        """Take an executor's word; an older one than known only shows that it lives."""
        executor = self.known.get(credit.executor)
        if executor is None:
            self.known[credit.executor] = Executor(credit, now_s)
            return True
        executor.heard_s = now_s
        if credit.seq < executor.credit.seq:
            return False
        executor.credit = credit
        executor.blocked = False
        return True

    def choose(self, tokens: int) -> str | None:
        """The executor with most free slots (then most free KV) that can take `tokens`."""
        able = [name for name, executor in self.known.items() if executor.can_take(tokens)]
        return max(able, key=lambda name: (self.known[name].free(), name), default=None)

    def lease(self, name: str, request_id: str, attempt: int, tokens: int) -> None:
        """Count a lease until it is answered."""
        self.known[name].in_flight[request_id] = (attempt, reserved(tokens))

    def answered(self, name: str, request_id: str) -> None:
        """The lease was answered, one way or the other."""
        if name in self.known:
            self.known[name].in_flight.pop(request_id, None)

    def block(self, name: str) -> None:
        """Give this executor nothing until it speaks again."""
        if name in self.known:
            self.known[name].blocked = True

    def lives(self, name: str) -> bool:
        """Heard, or told of by an inventory."""
        return name in self.known or name in self._expected

    def expect(self, name: str, now_s: float) -> None:
        """It has told what it runs; its credit comes."""
        self._expected[name] = now_s

    def heard_s(self, name: str) -> float:
        """When it was last heard; never = minus infinity."""
        executor = self.known.get(name)
        return executor.heard_s if executor is not None else float("-inf")

    def forget(self, name: str) -> None:
        """It is gone."""
        executor = self.known.pop(name, None)
        if executor is not None and (executor.credit.running or not executor.credit.draining):
            self.vanished_s = max(self.vanished_s, executor.heard_s)
        self._expected.pop(name, None)

    def forget_leases(self) -> None:
        """The pool has a new owner: no lease is on its way in our name."""
        for executor in self.known.values():
            executor.in_flight.clear()
            executor.blocked = False

    def forget_silent(self, now_s: float) -> list[str]:
        """Names of executors not heard for 3 s; they are forgotten."""
        for name, since_s in list(self._expected.items()):
            if now_s - since_s > SILENT_S:
                del self._expected[name]
        silent = [n for n, e in self.known.items() if now_s - e.heard_s > SILENT_S]
        for name in silent:
            self.forget(name)
        return silent

    def overlooks(self, entry: Entry, now_s: float) -> bool:
        """Whether the executor of a running request has not named it for 2 s (notes since when)."""
        executor = self.known.get(entry.executor or "")
        if entry.state is not State.RUNNING or executor is None:
            return False
        credit = executor.credit
        if credit.seq <= entry.lease_seq or (entry.request_id, entry.attempt) in credit.running:
            entry.missing_s = None
            return False
        if entry.missing_s is None:
            entry.missing_s = now_s
        return now_s - entry.missing_s > MISSING_S

    def pardon(self, now_s: float) -> None:
        """The bus was away: nobody could be heard, so silence starts now."""
        for executor in self.known.values():
            executor.heard_s = now_s
        self._expected = dict.fromkeys(self._expected, now_s)
