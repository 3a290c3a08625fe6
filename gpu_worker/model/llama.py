"""The forward pass of a Llama-family decoder (arXiv 2302.13971) over one flat batch."""

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from gpu_worker.attention.base import AttentionPlan
from gpu_worker.batch import ROW_MULTIPLE, Batch
from gpu_worker.model.loader import DecoderWeights, LayerWeights
from gpu_worker.model.rope import rotate, rotation_table
from gpu_worker.request import Ids
from stages.runtime.models.spec import ModelConfig


class Llama:
    """Weights and constants; holds nothing of any request."""

    def __init__(self, config: ModelConfig, weights: DecoderWeights, context: int) -> None:
        self._config = config
        self._weights = weights
        self._rotations = rotation_table(config, context)

    def forward(self, batch: Batch, attention: AttentionPlan) -> Tensor:
        """Logits fp32 [S, vocab] of the batch's sampling rows; all rows' KV goes to the cache."""
        ids = torch.from_numpy(batch.token_ids)
        rotation = self._rotations.index_select(0, torch.from_numpy(batch.positions))
        x = self._weights.embedding.index_select(0, ids).float()  # [P, hidden], owned by this step
        for index, layer in enumerate(self._weights.layers):
            self._layer(index, layer, x, rotation, attention)
        count = len(batch.sample_rows)
        if not count:
            return x.new_empty(0, self._config.vocab_size)
        rows = x.index_select(0, torch.from_numpy(_padded(batch.sample_rows)))
        return self._weights.head(self._norm(rows, self._weights.norm))[:count]

    def _layer(
        self, index: int, layer: LayerWeights, x: Tensor, rotation: Tensor, plan: AttentionPlan
    ) -> None:
        """Add attention and MLP of one layer to x [P, hidden] in place."""
        config = self._config
        turning = config.heads + config.kv_heads
        qkv = layer.qkv(self._norm(x, layer.input_norm))
        qkv = qkv.view(len(x), turning + config.kv_heads, config.head_dim)
        turned = rotate(qkv[:, :turning], rotation)
        queries, keys = turned[:, : config.heads], turned[:, config.heads :]
        x += layer.output(plan.run(index, queries, keys, qkv[:, turning:]))
        gate, up = layer.gate_up(self._norm(x, layer.post_norm)).chunk(2, dim=-1)
        x += layer.down(functional.silu(gate).mul_(up))

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return functional.rms_norm(x, (self._config.hidden_size,), weight, self._config.rms_eps)


def _padded(rows: Ids) -> Ids:
    """Repeat the first row until the count is a multiple that keeps each row's bits fixed."""
    return np.concatenate([rows, np.repeat(rows[:1], -len(rows) % ROW_MULTIPLE)])
