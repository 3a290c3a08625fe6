"""What an attention backend must offer. Others (triton) come beside the CPU one."""

from typing import Protocol

from torch import Tensor

from gpu_worker.batch import Batch


class AttentionPlan(Protocol):
    """One step's plan, shared by all layers."""

    def run(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Write keys and values to the cache, attend causally, return [P, heads * head_dim].

        queries [P, heads, head_dim]; keys, values [P, kv_heads, head_dim]; P padded rows.
        Rows of the padding are undefined but finite.
        """
        ...


class Attention(Protocol):
    """A backend bound to a model and its KV storage."""

    def plan(self, batch: Batch) -> AttentionPlan:
        """Prepare index tensors for one batch."""
        ...
