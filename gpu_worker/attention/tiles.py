"""How a batch is cut for attention, by a rule that looks at one sequence only.

Each span is cut at block boundaries of its own positions. Tiles of several rows go to prefill,
tiles of one row to decode, in whichever step they come. Chunks end on block boundaries too (see
the scheduler), so a sequence is always cut the same way: its result does not depend on the batch.
"""

from dataclasses import dataclass

from gpu_worker.batch import Batch, Span
from gpu_worker.request import Ids


@dataclass(frozen=True)
class Tile:
    """`rows` rows from batch row `row`, at positions [start, start + rows) of one block."""

    row: int
    rows: int
    start: int

    @property
    def end(self) -> int:
        """Position after the last row."""
        return self.start + self.rows


@dataclass(frozen=True)
class PrefillSpan:
    """Tiles of one sequence that share its keys. `blocks` int64 [n] cover the last tile's end."""

    tiles: tuple[Tile, ...]
    blocks: Ids


@dataclass(frozen=True)
class DecodeRow:
    """One row that attends to `length` positions held in `blocks` int64 [n]."""

    row: int
    length: int
    blocks: Ids


def cut(span: Span, block_size: int) -> list[Tile]:
    """Tiles of a span, in order."""
    tiles: list[Tile] = []
    start, row = span.start, span.row
    while start < span.end:
        rows = min(span.end, (start // block_size + 1) * block_size) - start
        tiles.append(Tile(row, rows, start))
        start, row = start + rows, row + rows
    return tiles


def partition(batch: Batch, block_size: int) -> tuple[list[PrefillSpan], list[DecodeRow]]:
    """All of a batch's work."""
    prefill: list[PrefillSpan] = []
    decode: list[DecodeRow] = []
    for span in batch.spans:
        tiles = cut(span, block_size)
        decode.extend(
            DecodeRow(tile.row, tile.end, _cover(span, tile, block_size))
            for tile in tiles
            if tile.rows == 1
        )
        several = tuple(tile for tile in tiles if tile.rows > 1)
        if several:
            prefill.append(PrefillSpan(several, _cover(span, several[-1], block_size)))
    return prefill, decode


def _cover(span: Span, tile: Tile, block_size: int) -> Ids:
    return span.blocks[: -(-tile.end // block_size)]
