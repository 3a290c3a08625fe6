"""Rotary positions (arXiv 2104.09864) as one complex product over pairs."""

import torch
from torch import Tensor

from stages.runtime.models.spec import ModelConfig


def rotation_table(config: ModelConfig, context: int) -> Tensor:
    """complex64 [context, 1, head_dim / 2]: e^(i * position * frequency), angles in fp32."""
    steps = torch.arange(0, config.head_dim, 2, dtype=torch.int64).float() / config.head_dim
    frequencies = 1.0 / (config.rope_theta**steps)
    angles = torch.arange(context, dtype=torch.float32)[:, None] * frequencies
    return torch.polar(torch.ones_like(angles), angles)[:, None]


def rotate(heads: Tensor, rotation: Tensor) -> Tensor:
    """Rotate [P, n, head_dim] (elements in pairs) by `rotation` complex64 [P, 1, head_dim / 2]."""
    rows, count, head_dim = heads.shape
    pairs = torch.view_as_complex(heads.view(rows, count, head_dim // 2, 2))
    return torch.view_as_real(pairs * rotation).view(rows, count, head_dim)
