"""One pool's queue under random events: nothing is lost, counted twice or leased twice."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule

from contracts.client import FinishReason, Priority
from contracts.frames import Credit
from contracts.sessions import Progress
from contracts.topology import PoolSection
from stages.queueing.ledger import State
from stages.queueing.pool import Grant, PoolQueue
from stages.queueing.recovery import Verdict, judge
from tests.queueing.support import FakeClock, make_entry, make_work

SECTION = PoolSection(model="m", kv_tokens=4096, buckets=[64, 256])


class PoolMachine(RuleBasedStateMachine):
    """Admissions, leases with every outcome, lost executors, notices and receipts in any order."""

    requests = Bundle("requests")

    def __init__(self) -> None:
        super().__init__()
        self.clock = FakeClock()
        self.pool = PoolQueue("p", SECTION)
        self.grants: list[Grant] = []
        self.known: set[str] = set()
        self.seq = 0

    @rule(
        target=requests,
        prompt=st.integers(1, 300),
        priority=st.sampled_from(Priority),
        life_s=st.integers(1, 60),
    )
    def accept(self, prompt: int, priority: Priority, life_s: int) -> str:
        deadline = int(self.clock.now_ms()) + life_s * 1000
        work = make_work(prompt, priority=priority, deadline_ms=deadline)
        entry = make_entry(work, len(self.known))
        self.pool.take(entry.tokens, self.clock.now_s())
        self.pool.accept(entry)
        self.known.add(work.request_id)
        return work.request_id

    @rule(name=st.sampled_from(["x", "y"]), slots=st.integers(0, 3))
    def speak(self, name: str, slots: int) -> None:
        self.seq += 1
        running = [(e.request_id, e.attempt) for e in self.pool.ledger if e.executor == name]
        self.pool.executors.hear(
            Credit(name, "p", self.seq, slots, 1024, running), self.clock.now_s()
        )

    @rule()
    def grant(self) -> None:
        grant = self.pool.grant(self.clock.now_s(), self.clock.now_ms())
        if grant is not None:
            assert grant.entry.work.deadline_ms > self.clock.now_ms()
            assert grant.attempt > grant.entry.attempt
            assert all(grant.entry is not other.entry for other in self.grants)
            self.grants.append(grant)

    @rule(outcome=st.sampled_from(["taken", "declined", "unanswered"]), pick=st.integers(0, 9))
    def answer(self, outcome: str, pick: int) -> None:
        if not self.grants:
            return
        grant = self.grants.pop(pick % len(self.grants))
        if outcome == "taken":
            self.pool.taken(grant, self.clock.now_s(), self.seq)
        elif outcome == "declined":
            self.pool.declined(grant)
        elif not self.pool.unanswered(grant) and grant.entry.state is State.LEASING:
            self.pool.close(grant.entry, FinishReason.ERROR, self.clock.now_s())

    @rule(name=st.sampled_from(["x", "y"]))
    def speak_of_nothing(self, name: str) -> None:
        """What ran there has ended; nobody told."""
        self.seq += 1
        self.pool.executors.hear(Credit(name, "p", self.seq, 2, 1024, []), self.clock.now_s())

    @rule()
    def look_for_missing(self) -> None:
        for entry in self.pool.lose_missing(self.clock.now_s()):
            assert entry.state is State.LOST

    @rule(seconds=st.floats(0.1, 5))
    def time_passes(self, seconds: float) -> None:
        self.clock.seconds += seconds
        self.pool.lose_silent(self.clock.now_s())

    @rule(attempt=st.integers(0, 5), is_open=st.booleans())
    def egress_tells_progress(self, attempt: int, is_open: bool) -> None:
        for entry in self.pool.ledger:
            if entry.state is State.LOST:
                progress = Progress(
                    request_id=entry.request_id, open=is_open, attempt=attempt, ids=[1]
                )
                if judge(entry, progress) is Verdict.LEASE_AGAIN:
                    self.pool.line_up_again(entry)
                else:
                    self.pool.close(entry, FinishReason.ERROR, self.clock.now_s())

    @rule(request=requests)
    def notice(self, request: str) -> None:
        entry = self.pool.ledger.get(request)
        if entry is not None:
            self.pool.close(entry, FinishReason.CANCELLED, self.clock.now_s())

    @rule(request=requests, reason=st.sampled_from(FinishReason))
    def receipt(self, request: str, reason: FinishReason) -> None:
        known = self.pool.ledger.get(request) is not None
        assert (self.pool.end(request, reason) is not None) == known
        assert self.pool.end(request, reason) is None  # a second one counts nothing

    @invariant()
    def conservation(self) -> None:
        c = self.pool.counters()
        ends = c["finished"] + c["cancelled"] + c["failed"] + c["expired"]
        assert c["accepted"] == ends + c["running"] + c["queued"] == len(self.known)

    @invariant()
    def every_request_is_where_its_state_says(self) -> None:
        waiting = {e.request_id for e in self.pool.ledger if e.state is State.QUEUED}
        assert set(self.pool.order) == waiting
        entries = [e for e in self.pool.ledger if e.state is State.QUEUED]
        assert self.pool.bounds.requests == len(entries)
        assert self.pool.bounds.tokens == sum(e.tokens for e in entries)
        leasing = {e.request_id for e in self.pool.ledger if e.state is State.LEASING}
        assert leasing <= {grant.entry.request_id for grant in self.grants}
        assert all(e.executor for e in self.pool.ledger if e.state is State.RUNNING)


TestPool = PoolMachine.TestCase
TestPool.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
