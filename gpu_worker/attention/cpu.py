"""The CPU backend: prefill by tiles, decode by blocks."""

import torch
from torch import Tensor

from gpu_worker.attention.base import AttentionPlan
from gpu_worker.attention.decode import DecodePlan
from gpu_worker.attention.prefill import PrefillPlan, triangle
from gpu_worker.attention.tiles import partition
from gpu_worker.batch import Batch
from gpu_worker.cache.storage import KVStorage
from stages.runtime.models.spec import ModelConfig


class CpuPlan:
    """One step on the CPU."""

    def __init__(
        self,
        storage: KVStorage,
        rows: Tensor,
        prefill: PrefillPlan | None,
        decode: DecodePlan | None,
    ) -> None:
        self._storage = storage
        self._rows = rows  # int64 [R, kv_heads]
        self._prefill = prefill
        self._decode = decode

    def run(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """See AttentionPlan.run."""
        cache = self._storage.layers[layer]
        count = len(self._rows)
        cache.write(self._rows, keys[:count], values[:count])
        out = torch.empty(queries.shape)
        out[count:] = 0.0
        if self._prefill is not None:
            self._prefill.run(cache, queries, out)
        if self._decode is not None:
            self._decode.run(cache, queries, out)
        return out.flatten(1)


class CpuAttention:
    """Bound to a model's shape and its KV storage."""

    def __init__(
        self, config: ModelConfig, storage: KVStorage, block_size: int, context: int
    ) -> None:
        self._config = config
        self._storage = storage
        self._block_size = block_size
        self._mask = triangle(block_size, context)

    def plan(self, batch: Batch) -> AttentionPlan:
        """See Attention.plan."""
        prefill, decode = partition(batch, self._block_size)
        heads, kv_heads = self._config.heads, self._config.kv_heads
        return CpuPlan(
            self._storage,
            self._storage.rows(batch),
            PrefillPlan(prefill, kv_heads, self._mask) if prefill else None,
            DecodePlan(decode, heads, self._block_size) if decode else None,
        )
