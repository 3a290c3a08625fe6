"""Where keys and values lie: per layer [blocks, kv_heads, block_size, head_dim], fp32.

Head-major inside a block, blocks next to each other: any run of blocks is one view of shape
[run * kv_heads, block_size, head_dim], ready for a batched matmul over all sequences at once.
"""

from dataclasses import dataclass
from math import prod
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gpu_worker.batch import Batch
from stages.runtime.models.spec import ModelConfig

HUGE_PAGE: Final = 2 << 20  # bytes; where the kernel has them, a pool's pages come in this size


@dataclass(frozen=True)
class LayerCache:
    """One layer's pool. `keys`, `values`: [blocks, kv_heads, block_size, head_dim]."""

    keys: Tensor
    values: Tensor

    def write(self, rows: Tensor, keys: Tensor, values: Tensor) -> None:
        """Store keys and values [R, kv_heads, head_dim] at `rows` int64 [R, kv_heads]."""
        head_dim = self.keys.shape[-1]
        self.keys.view(-1, head_dim).index_put_((rows,), keys)
        self.values.view(-1, head_dim).index_put_((rows,), values)


class KVStorage:
    """All layers' pools. Pages become resident when first written (zeroed lazily by the OS).

    They must start as zeros: masked places are multiplied by weight 0, and 0 * NaN is NaN.
    """

    def __init__(self, config: ModelConfig, blocks: int, block_size: int) -> None:
        shape = (config.layers, 2, blocks, config.kv_heads, block_size, config.head_dim)
        pool = torch.from_numpy(_zeros(shape))
        self.layers = tuple(LayerCache(layer[0], layer[1]) for layer in pool)
        self._heads = np.arange(config.kv_heads, dtype=np.int64)
        self._block_size = block_size

    def rows(self, batch: Batch) -> Tensor:
        """Where a batch's rows go, int64 [R, kv_heads], for `LayerCache.write`."""
        heads = batch.kv_blocks[:, None] * len(self._heads) + self._heads
        return torch.from_numpy(heads * self._block_size + batch.kv_offsets[:, None])


def _zeros(shape: tuple[int, ...]) -> npt.NDArray[np.float32]:
    """Zeros that begin where a huge page does. What numpy gives begins just before one: then the first
    block of a layer whose size is a multiple of it touches two."""
    size = prod(shape) * 4
    memory = np.zeros(size + HUGE_PAGE, dtype=np.uint8)
    begin = -memory.ctypes.data % HUGE_PAGE
    return memory[begin : begin + size].view(np.float32).reshape(shape)
