"""A linear layer without bias, in three implementations, and the choice between them.

`Packed`: weights in fp16, activations and sums in fp32, by fbgemm: half the memory and 2-4 times
faster than plain fp32 at decode sizes. `Reordered`: fp32 in oneDNN's blocked layout, about 3 times
faster than `Dense` at 4 rows. `Dense`: plain fp32, for where oneDNN is missing. Each gives a row
the same bits whatever else is in the batch when the number of rows is a multiple of
`batch.ROW_MULTIPLE`; results of different implementations differ in the last bits.
"""

from collections.abc import Callable
from typing import Literal, Protocol

import torch
from torch import Tensor

from gpu_worker.config import WeightMode

Scheme = Literal["fp32", "fp16"]


class Linear(Protocol):
    """y = x W^T for x [P, in], P a multiple of 4; y [P, out]."""

    def __call__(self, x: Tensor) -> Tensor:
        """Apply the layer."""
        ...


class Dense:
    """Weights kept in fp32, [out, in]."""

    def __init__(self, weight: Tensor) -> None:
        self._weight = weight

    def __call__(self, x: Tensor) -> Tensor:
        """x [P, in] -> [P, out]."""
        return torch.nn.functional.linear(x, self._weight)


class Reordered:
    """Weights in fp32, reordered once for oneDNN; the plain weight is not kept."""

    def __init__(self, weight: Tensor) -> None:
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight)

    def __call__(self, x: Tensor) -> Tensor:
        """x [P, in] -> [P, out]."""
        out: Tensor = torch.ops.mkldnn._linear_pointwise(x, self._weight, None, "none", [], "")
        return out


class Packed:
    """Weights packed to fp16 in fbgemm's layout; the fp32 weight is not kept."""

    def __init__(self, weight: Tensor) -> None:
        self._packed = torch.ops.quantized.linear_prepack_fp16(weight, None)

    def __call__(self, x: Tensor) -> Tensor:
        """x [P, in] -> [P, out]."""
        out: Tensor = torch.ops.quantized.linear_dynamic_fp16(x, self._packed)
        return out


def works(kind: type[Packed] | type[Reordered]) -> bool:
    """Whether a kind computes the right thing on this machine (a 4 x 8 by 8 x 8 product)."""
    weight = torch.arange(64, dtype=torch.float32).view(8, 8) / 64
    x = torch.ones(4, 8)
    try:
        return bool(torch.allclose(kind(weight)(x), Dense(weight)(x), rtol=1e-3))
    except (RuntimeError, AttributeError):  # library not built in, or CPU without instructions
        return False


def choose_scheme(mode: WeightMode) -> Scheme:
    """The weight scheme for a setting. Raises ValueError when fp16 is demanded and impossible."""
    if mode == "fp32":
        return "fp32"
    packs = works(Packed)
    if mode == "fp16" and not packs:
        raise ValueError("weights: fp16 needs fbgemm on a CPU with AVX2; use auto or fp32")
    return "fp16" if packs else "fp32"


def linear_for(scheme: Scheme) -> Callable[[Tensor], Linear]:
    """What makes a layer from a weight fp32 [out, in] under a scheme."""
    if scheme == "fp16":
        return Packed
    return Reordered if works(Reordered) else Dense
