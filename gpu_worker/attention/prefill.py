"""Prompt rows: one scaled-dot-product call for each tile, over the keys up to the tile's end."""

from collections.abc import Sequence as Seq

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from gpu_worker.attention.tiles import PrefillSpan, Tile
from gpu_worker.cache.storage import LayerCache


def triangle(block_size: int, context: int) -> Tensor:
    """fp32 [block_size, width]: 0 where a tile's row may look, -inf after its own position.

    The last block_size columns stand for the tile's own block; a tile takes a slice of columns.
    """
    width = -(-context // block_size) * block_size
    mask = torch.zeros(block_size, width)
    own = torch.full((block_size, block_size), float("-inf"))
    mask[:, width - block_size :] = torch.triu(own, diagonal=1)
    return mask


class PrefillPlan:
    """Tiles of all prompts in a step."""

    def __init__(self, spans: Seq[PrefillSpan], kv_heads: int, mask: Tensor) -> None:
        self._mask = mask
        self._spans = spans
        heads = np.arange(kv_heads)[:, None]
        # Pool rows (block, head), ordered head-major: one copy gives [kv_heads, n, head_dim].
        self._rows = [torch.from_numpy((s.blocks * kv_heads + heads).ravel()) for s in spans]

    def run(self, cache: LayerCache, queries: Tensor, out: Tensor) -> None:
        """Fill out [P, heads, head_dim] for the planned rows of queries [P, heads, head_dim]."""
        for span, rows in zip(self._spans, self._rows, strict=True):
            keys, values = _gathered(cache.keys, rows), _gathered(cache.values, rows)
            for tile in span.tiles:
                self._tile(tile, queries, keys, values, out)

    def _tile(self, tile: Tile, queries: Tensor, keys: Tensor, values: Tensor, out: Tensor) -> None:
        block_size, width = self._mask.shape
        first = width - block_size - tile.start
        where = slice(tile.row, tile.row + tile.rows)
        result = functional.scaled_dot_product_attention(
            queries[where].transpose(0, 1)[None],
            keys[:, :, : tile.end],
            values[:, :, : tile.end],
            attn_mask=self._mask[: tile.rows, first : first + tile.end],
            enable_gqa=True,
        )
        out[where] = result[0].transpose(0, 1)


def _gathered(pool: Tensor, rows: Tensor) -> Tensor:
    """[1, kv_heads, n, head_dim] out of a pool [blocks, kv_heads, block_size, head_dim]."""
    blocks, kv_heads, block_size, head_dim = pool.shape
    flat = pool.view(blocks * kv_heads, block_size * head_dim)
    return flat.index_select(0, rows).view(1, kv_heads, -1, head_dim)
