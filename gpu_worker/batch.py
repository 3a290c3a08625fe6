"""One step's work, immutable: what the scheduler chose, flattened into rows."""

from collections.abc import Sequence as Seq
from dataclasses import dataclass

import numpy as np

from gpu_worker.request import Ids, Sequence

ROW_MULTIPLE = 4  # linear kernels give the same bits a row only when rows are a multiple of this


@dataclass(frozen=True)
class Chunk:
    """The scheduler's choice: compute `rows` tokens of `sequence` from position `start` on."""

    sequence: Sequence
    start: int
    rows: int

    @property
    def end(self) -> int:
        """Position after the last row."""
        return self.start + self.rows

    @property
    def samples(self) -> bool:
        """Whether the last row yields a new token (all known tokens are computed then)."""
        return self.end == self.sequence.total


@dataclass(frozen=True)
class Span:
    """A chunk's rows in the flat batch, and the KV blocks that hold its sequence up to `end`."""

    row: int  # first row in the batch
    rows: int
    start: int  # position of the first row in its sequence
    blocks: Ids  # int64 [ceil(end / block_size)]

    @property
    def end(self) -> int:
        """Position after the last row."""
        return self.start + self.rows


@dataclass(frozen=True)
class Batch:
    """R real rows, padded to P = a multiple of 4; S rows whose logits are wanted."""

    token_ids: Ids  # int64 [P], padding is token 0
    positions: Ids  # int64 [P], padding is position 0
    kv_blocks: Ids  # int64 [R], block each row's key and value go to
    kv_offsets: Ids  # int64 [R], place inside that block
    spans: tuple[Span, ...]
    sample_rows: Ids  # int64 [S]
    rows: int  # R


def build(chunks: Seq[Chunk], block_size: int) -> Batch:
    """Flatten chunks into one batch; the work is per request and vectorised over tokens."""
    rows = sum(chunk.rows for chunk in chunks)
    padded = -(-rows // ROW_MULTIPLE) * ROW_MULTIPLE
    token_ids = np.zeros(padded, dtype=np.int64)
    positions = np.zeros(padded, dtype=np.int64)
    kv_blocks = np.empty(rows, dtype=np.int64)
    spans: list[Span] = []
    sample_rows: list[int] = []
    row = 0
    for chunk in chunks:
        where = slice(row, row + chunk.rows)
        token_ids[where] = chunk.sequence.ids[chunk.start : chunk.end]
        positions[where] = np.arange(chunk.start, chunk.end)
        blocks = chunk.sequence.blocks[: -(-chunk.end // block_size)]
        kv_blocks[where] = blocks[positions[where] // block_size]
        spans.append(Span(row, chunk.rows, chunk.start, blocks))
        row += chunk.rows
        if chunk.samples:
            sample_rows.append(row - 1)
    return Batch(
        token_ids=token_ids,
        positions=positions,
        kv_blocks=kv_blocks,
        kv_offsets=positions[:rows] % block_size,
        spans=tuple(spans),
        sample_rows=np.asarray(sample_rows, dtype=np.int64),
        rows=rows,
    )
