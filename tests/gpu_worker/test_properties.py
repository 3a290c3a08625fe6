"""Stateful property test of scheduler, cache and engine: nothing leaks, all finish in fair time."""

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gpu_worker.cache.allocator import BlockAllocator
from gpu_worker.config import EngineConfig
from gpu_worker.request import Request, RequestRefusedError, Sequence
from gpu_worker.scheduler import Scheduler

CONFIG = EngineConfig(
    kv_tokens=128,
    block_size=8,
    max_batch=3,
    step_tokens=32,
    prefill_chunk=24,
    mixed_chunk=8,
)


class SchedulerMachine(RuleBasedStateMachine):
    """A scheduler with a fake model: every sample is one more token."""

    def __init__(self) -> None:
        super().__init__()
        self.allocator = BlockAllocator(CONFIG.blocks)
        self.scheduler = Scheduler(CONFIG, self.allocator)
        self.live: dict[str, Sequence] = {}
        self.waited: dict[str, int] = {}
        self.count = 0

    @rule(prompt=st.integers(1, 100), output=st.integers(1, 28))
    def add(self, prompt: int, output: int) -> None:
        request = Request(f"r{self.count}", (1,) * prompt, output)
        self.count += 1
        sequence = Sequence(request, frozenset())
        self.live[request.id] = sequence
        self.waited[request.id] = 0
        self.scheduler.submit(sequence)

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        sequence = self.live.pop(data.draw(st.sampled_from(sorted(self.live))))
        self.scheduler.remove(sequence)

    @rule(steps=st.integers(1, 5))
    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.step()

    def step(self) -> None:
        chunks = self.scheduler.schedule()
        assert bool(chunks) == bool(self.live), "work is there, but nothing was scheduled"
        assert sum(chunk.rows for chunk in chunks) <= CONFIG.step_tokens
        decodes = {c.sequence.id for c in chunks if c.rows == 1}
        for sequence in self.scheduler.running:
            if sequence.total - sequence.computed == 1:
                assert sequence.id in decodes, "a decode was left out of a step"
        for chunk in chunks:
            assert chunk.rows > 0
            assert chunk.start == chunk.sequence.computed
            assert chunk.samples or chunk.end % CONFIG.block_size == 0
            assert chunk.end <= len(chunk.sequence.blocks) * CONFIG.block_size
        self.scheduler.commit(chunks)
        for chunk in chunks:
            sequence = chunk.sequence
            if chunk.samples and sequence.commit(0) is not None:
                self.scheduler.remove(sequence)
                del self.live[sequence.id]
        self.check_starvation({chunk.sequence.id for chunk in chunks})

    def check_starvation(self, served: set[str]) -> None:
        """The oldest request is always served: whatever is behind it moves up."""
        if self.live:
            oldest = next(iter(self.live))
            self.waited[oldest] = 0 if oldest in served else self.waited[oldest] + 1
            assert self.waited[oldest] <= 1, "the oldest request starves"

    @invariant()
    def blocks_have_one_owner(self) -> None:
        self.allocator.check_integrity()
        running = {sequence.id for sequence in self.scheduler.running}
        assert self.allocator.owners() == running

    def teardown(self) -> None:
        for _ in range(5000):
            if not self.live:
                break
            self.step()
        assert not self.live, "not all requests finish"
        assert self.allocator.free_blocks == CONFIG.blocks
        assert self.scheduler.schedule() == []


SchedulerMachine.TestCase.settings = settings(
    max_examples=60,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
TestScheduler = SchedulerMachine.TestCase


class AllocatorMachine(RuleBasedStateMachine):
    """The block allocator alone, with sizes that fragment it."""

    def __init__(self) -> None:
        super().__init__()
        self.allocator = BlockAllocator(20)
        self.owned: dict[str, set[int]] = {}
        self.count = 0

    @rule(count=st.integers(1, 12))
    def allocate(self, count: int) -> None:
        owner = f"o{self.count}"
        self.count += 1
        free = self.allocator.free_blocks
        blocks = self.allocator.allocate(owner, count)
        assert (blocks is None) == (count > free)
        if blocks is not None:
            self.owned[owner] = set(blocks.tolist())
            assert len(self.owned[owner]) == count

    @precondition(lambda self: self.owned)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        owner = data.draw(st.sampled_from(sorted(self.owned)))
        self.allocator.release(owner)
        del self.owned[owner]

    @invariant()
    def consistent(self) -> None:
        self.allocator.check_integrity()
        all_blocks = [block for blocks in self.owned.values() for block in blocks]
        assert len(all_blocks) == len(set(all_blocks)) == 20 - self.allocator.free_blocks


AllocatorMachine.TestCase.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None
)
TestAllocator = AllocatorMachine.TestCase


def test_a_contiguous_run_is_preferred() -> None:
    allocator = BlockAllocator(10)
    for owner in "abcde":
        allocator.allocate(owner, 2)
    allocator.release("a")
    allocator.release("c")
    allocator.release("d")
    blocks = allocator.allocate("f", 3)
    assert blocks is not None
    assert blocks.tolist() == [4, 5, 6]
    spread = allocator.allocate("g", 3)
    assert spread is not None
    assert spread.tolist() == [0, 1, 7]


def test_refusals_carry_a_code() -> None:
    assert RequestRefusedError("conflict", "twice").code == "conflict"
