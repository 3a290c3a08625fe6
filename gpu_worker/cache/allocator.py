"""Block ownership: first fit at the lowest address, one contiguous run where there is one.

Low addresses first keeps the used part of the pool dense, so decode attention reads long runs.
"""

from bisect import bisect_left

import numpy as np

from gpu_worker.request import Ids

Run = tuple[int, int]  # first block, number of blocks


class BlockAllocator:
    """Owns `blocks` blocks. Always: each block is free or has exactly one owner."""

    def __init__(self, blocks: int) -> None:
        self.blocks = blocks
        self.free_blocks = blocks
        self._free: list[Run] = [(0, blocks)] if blocks else []  # sorted, disjoint, merged
        self._owned: dict[str, Ids] = {}

    def allocate(self, owner: str, count: int) -> Ids | None:
        """Blocks int64 [count] for `owner`, or None when too few are free.

        Raises ValueError if the owner already has blocks.
        """
        if owner in self._owned:
            raise ValueError(f"{owner} already owns blocks")
        if count > self.free_blocks:
            return None
        whole = next((i for i, (_, length) in enumerate(self._free) if length >= count), None)
        runs = self._gather(count) if whole is None else [self._cut(whole, count)]
        taken = np.concatenate([np.arange(a, a + n, dtype=np.int64) for a, n in runs])
        self._owned[owner] = taken
        self.free_blocks -= count
        return taken

    def release(self, owner: str) -> None:
        """Take all of an owner's blocks back. Raises KeyError for an unknown owner."""
        blocks = np.sort(self._owned.pop(owner))
        self.free_blocks += len(blocks)
        breaks = np.flatnonzero(np.diff(blocks) != 1) + 1
        for run in np.split(blocks, breaks):
            if len(run):
                self._give_back(int(run[0]), len(run))

    def owners(self) -> frozenset[str]:
        """Who owns blocks now."""
        return frozenset(self._owned)

    def check_integrity(self) -> None:
        """Raise AssertionError if a block is leaked, owned twice, or free and owned."""
        uses = np.zeros(self.blocks, dtype=np.int64)
        last_end = -1
        for start, length in self._free:
            assert length > 0, "a free run is empty"
            assert start > last_end, "free runs must be sorted and merged"
            last_end = start + length
            uses[start:last_end] += 1
        assert int(uses.sum()) == self.free_blocks, "free count differs from the free runs"
        for blocks in self._owned.values():
            np.add.at(uses, blocks, 1)
        assert bool((uses == 1).all()), "a block is leaked or doubly owned"

    def _cut(self, index: int, count: int) -> Run:
        start, length = self._free[index]
        if length == count:
            del self._free[index]
        else:
            self._free[index] = (start + count, length - count)
        return start, count

    def _gather(self, count: int) -> list[Run]:
        runs: list[Run] = []
        while count:
            taken = self._cut(0, min(count, self._free[0][1]))
            runs.append(taken)
            count -= taken[1]
        return runs

    def _give_back(self, start: int, length: int) -> None:
        at = bisect_left(self._free, (start, 0))
        if at < len(self._free) and self._free[at][0] == start + length:
            length += self._free.pop(at)[1]
        if at and sum(self._free[at - 1]) == start:
            before = self._free[at - 1]
            self._free[at - 1] = (before[0], before[1] + length)
        else:
            self._free.insert(at, (start, length))
