"""Decode rows: all sequences of a step in two batched matmuls, whatever their lengths.

Each KV block is one item: scores of its owner's queries with its keys, later weights times its
values. Between them the scores are laid out by sequence for the softmax; at the end each sequence
sums its blocks in order. The split is fixed (one block), items do not see each other and padding
adds exact zeros: a row's bits do not depend on the batch. (Flash-Decoding's split, with the
softmax done in full.) Where used blocks lie next to each other, a run of them is one view.
"""

from collections.abc import Sequence as Seq
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from gpu_worker.attention.tiles import DecodeRow
from gpu_worker.cache.storage import LayerCache
from gpu_worker.request import Ids

HOLE = 1  # unused blocks that may lie inside a run: computing one costs less than another call


@dataclass(frozen=True)
class Run:
    """Pool blocks [first, first + count) are items [item, item + count)."""

    first: int
    count: int
    item: int


def runs_of(used: Ids) -> list[Run]:
    """Cover sorted block ids with few runs."""
    starts = np.flatnonzero(np.diff(used, prepend=used[0] - HOLE - 2) > HOLE + 1)
    ends = np.append(starts[1:], len(used)) - 1
    runs: list[Run] = []
    item = 0
    for first, last in zip(used[starts].tolist(), used[ends].tolist(), strict=True):
        runs.append(Run(first, last - first + 1, item))
        item += last - first + 1
    return runs


class DecodePlan:
    """Index tensors for B rows, C items (blocks computed), at most N blocks a sequence.

    H heads = K kv_heads * G; score rows are [C * H, block_size].
    """

    def __init__(self, rows: Seq[DecodeRow], heads: int, block_size: int) -> None:
        lengths = np.array([row.length for row in rows])
        counts = np.array([len(row.blocks) for row in rows])
        blocks = np.concatenate([row.blocks for row in rows])
        owners = np.repeat(np.arange(len(rows)), counts)
        nth = np.arange(len(blocks)) - np.repeat(np.cumsum(counts) - counts, counts)
        self._runs = runs_of(np.sort(blocks))
        item_blocks = np.concatenate([np.arange(r.first, r.first + r.count) for r in self._runs])
        items = np.searchsorted(item_blocks, blocks)  # item of each used block, by sequence
        self._width = int(counts.max())
        self._heads = heads
        self._rows = torch.from_numpy(np.array([row.row for row in rows]))
        self._items = torch.from_numpy(items)
        self._bags = torch.from_numpy(np.cumsum(counts) - counts)
        self._index(owners, nth, items, len(item_blocks))
        positions = np.arange(self._width * block_size)
        hidden = torch.from_numpy(positions >= lengths[:, None])
        self._bias = torch.zeros(hidden.shape).masked_fill_(hidden, float("-inf"))[:, None]

    def _index(self, owners: Ids, nth: Ids, items: Ids, count: int) -> None:
        """Owner of each item, and the way of score rows from items to sequences and back."""
        owner_of = np.zeros(count, dtype=np.int64)  # holes belong to no one: computed, not read
        nth_of = np.zeros(count, dtype=np.int64)
        owner_of[items], nth_of[items] = owners, nth
        item_of = np.zeros((int(owners[-1]) + 1, self._width), dtype=np.int64)
        item_of[owners, nth] = items
        head = np.arange(self._heads)
        to_sequences = item_of[:, None, :] * self._heads + head[:, None]  # [B, H, N]
        to_items = (owner_of[:, None] * self._heads + head) * self._width + nth_of[:, None]
        self._owner_of = torch.from_numpy(owner_of)
        self._to_sequences = torch.from_numpy(to_sequences.ravel())
        self._to_items = torch.from_numpy(to_items.ravel())

    def run(self, cache: LayerCache, queries: Tensor, out: Tensor) -> None:
        """Fill out [P, heads, head_dim] for the planned rows of queries [P, heads, head_dim]."""
        _, kv_heads, block_size, head_dim = cache.keys.shape
        batch, items, group = len(self._rows), len(self._owner_of), self._heads // kv_heads
        chosen = queries.index_select(0, self._rows).mul_(head_dim**-0.5)
        by_item = chosen.index_select(0, self._owner_of).view(items * kv_heads, group, head_dim)
        scores = queries.new_empty(items * kv_heads, group, block_size)
        self._multiply(by_item, cache.keys.transpose(2, 3), scores)
        weights = scores.view(-1, block_size).index_select(0, self._to_sequences)
        weights = weights.view(batch, self._heads, -1).add_(self._bias).softmax(-1)
        weights = weights.view(-1, block_size).index_select(0, self._to_items)
        parts = queries.new_empty(items * kv_heads, group, head_dim)
        self._multiply(weights.view_as(scores), cache.values, parts)
        summed = functional.embedding_bag(
            self._items, parts.view(items, -1), self._bags, mode="sum"
        )
        out[self._rows] = summed.view(batch, self._heads, head_dim)

    def _multiply(self, left: Tensor, pool: Tensor, out: Tensor) -> None:
        """Batched matmul of items with their blocks; `pool` [blocks, kv_heads, inner, columns]."""
        kv_heads = pool.shape[1]
        for run in self._runs:
            where = slice(run.item * kv_heads, (run.item + run.count) * kv_heads)
            right = pool[run.first : run.first + run.count].flatten(0, 1)
            torch.bmm(left[where], right, out=out[where])
