"""One token budget, no phases: each request's `computed` catches up with its `total`.

A decode is simply a request that lacks one token. Decodes go first, prompt chunks fill the rest
(Sarathi-Serve, arXiv 2403.02310). Admission reserves blocks for prompt plus max_tokens, so a
running request never waits for memory: no preemption, no deadlock.
"""

from collections import deque

from gpu_worker.batch import Chunk
from gpu_worker.cache.allocator import BlockAllocator
from gpu_worker.config import EngineConfig
from gpu_worker.request import Sequence


class Scheduler:
    """Orders requests first come, first served, and gives each step its chunks."""

    def __init__(self, config: EngineConfig, allocator: BlockAllocator) -> None:
        self._config = config
        self._allocator = allocator
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []

    def blocks_for(self, sequence: Sequence) -> int:
        """KV blocks a request reserves: its prompt and its longest output."""
        return -(-sequence.capacity // self._config.block_size)

    def submit(self, sequence: Sequence) -> None:
        """Queue a request behind all others."""
        self.waiting.append(sequence)

    def schedule(self) -> list[Chunk]:
        """Admit what fits, then choose the next step's chunks. Empty when nothing is to do."""
        self._admit()
        lacking_one = [s for s in self.running if s.total - s.computed == 1]
        prompts = [s for s in self.running if s.total - s.computed > 1]
        chunks = [Chunk(s, s.computed, 1) for s in lacking_one]
        limit = self._config.mixed_chunk if chunks else self._config.prefill_chunk
        chunks += self._prefill(prompts, min(limit, self._config.step_tokens - len(chunks)))
        for chunk in chunks:
            chunk.sequence.scheduled = chunk.end
        return chunks

    def commit(self, chunks: list[Chunk]) -> None:
        """The step ran: what was scheduled is computed."""
        for chunk in chunks:
            chunk.sequence.computed = chunk.end

    def remove(self, sequence: Sequence) -> None:
        """Forget a request, wherever it is, and free its blocks."""
        if sequence in self.running:
            self.running.remove(sequence)
            self._allocator.release(sequence.id)
        else:
            self.waiting.remove(sequence)

    def _admit(self) -> None:
        # Strictly in order: letting a small request pass a large one could starve the large one.
        while self.waiting and len(self.running) < self._config.max_batch:
            sequence = self.waiting[0]
            blocks = self._allocator.allocate(sequence.id, self.blocks_for(sequence))
            if blocks is None:
                return
            sequence.blocks = blocks
            self.running.append(self.waiting.popleft())

    def _prefill(self, prompts: list[Sequence], budget: int) -> list[Chunk]:
        chunks: list[Chunk] = []
        for sequence in prompts:
            end = min(sequence.total, sequence.computed + budget)
            if end < sequence.total:
                # Chunks end on block boundaries, so attention tiles, and with them the bits of
                # the result, do not depend on what else was in the batch.
                end -= end % self._config.block_size
            if end <= sequence.computed:
                break
            chunks.append(Chunk(sequence, sequence.computed, end - sequence.computed))
            budget -= end - sequence.computed
        return chunks
