"""Stored bytes to float32, vectorised. Block formats as in GGUF (32 weights a block).

Q8_0: fp16 scale, 32 x int8. Q4_0: fp16 scale, 16 bytes. Q4_1: fp16 scale, fp16 minimum, 16 bytes.
In a 4-bit block the low nibbles are weights 0-15 and the high nibbles 16-31.

Each decoder writes where it is told to: memory that is touched for the first time costs more than
the arithmetic, so there is one copy of a weight as float32, in the matrix that is packed.
"""

from collections.abc import Callable
from typing import Final

import numpy as np
import numpy.typing as npt

Raw = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]

_LOW: Final = np.uint64(0x0F0F0F0F0F0F0F0F)  # the low nibbles of eight bytes


def _f32(raw: Raw, out: Floats) -> None:
    out[:] = raw.view(np.float32)


def _f16(raw: Raw, out: Floats) -> None:
    out[:] = raw.view(np.float16)


def _bf16(raw: Raw, out: Floats) -> None:
    bits = out.view(np.uint32)
    bits[:] = raw.view(np.uint16)
    bits <<= 16


def _half(blocks: Raw, at: int) -> Floats:
    return blocks[:, at : at + 2].copy().view(np.float16).astype(np.float32)  # [n, 1]


def _nibbles(packed: Raw) -> Raw:
    """[n, 16] bytes to [n, 32] nibbles: eight bytes at a time, put in place sixteen at a time."""
    words = packed.copy().reshape(-1).view(np.uint64)
    halves = np.empty((len(packed), 2), dtype=np.complex128)  # stands for any 16 bytes
    halves[:, 0] = (words & _LOW).view(np.complex128)
    words >>= np.uint64(4)
    words &= _LOW
    halves[:, 1] = words.view(np.complex128)
    return halves.view(np.uint8)


def _q8_0(raw: Raw, out: Floats) -> None:
    blocks, weights = raw.reshape(-1, 34), out.reshape(-1, 32)
    weights[:] = blocks[:, 2:].view(np.int8)
    weights *= _half(blocks, 0)


def _q4_0(raw: Raw, out: Floats) -> None:
    blocks, weights = raw.reshape(-1, 18), out.reshape(-1, 32)
    weights[:] = _nibbles(blocks[:, 2:])
    weights -= 8.0
    weights *= _half(blocks, 0)


def _q4_1(raw: Raw, out: Floats) -> None:
    blocks, weights = raw.reshape(-1, 20), out.reshape(-1, 32)
    weights[:] = _nibbles(blocks[:, 4:])
    weights *= _half(blocks, 0)
    weights += _half(blocks, 2)


DECODERS: dict[str, tuple[Callable[[Raw, Floats], None], int, int]] = {
    # encoding: (function, weights a unit, bytes a unit)
    "F32": (_f32, 1, 4),
    "F16": (_f16, 1, 2),
    "BF16": (_bf16, 1, 2),
    "Q8_0": (_q8_0, 32, 34),
    "Q4_0": (_q4_0, 32, 18),
    "Q4_1": (_q4_1, 32, 20),
}


def stored_bytes(encoding: str, weights: int) -> int:
    """Bytes that `weights` weights take. Raises ValueError for an encoding that is not known."""
    if encoding not in DECODERS:
        raise ValueError(f"encoding {encoding} is not supported; known: {', '.join(DECODERS)}")
    _, unit, size = DECODERS[encoding]
    if weights % unit:
        raise ValueError(f"{weights} weights are not a whole number of {encoding} blocks")
    return weights // unit * size


def dequantize(encoding: str, raw: Raw, out: Floats) -> None:
    """Write the stored bytes uint8 [m] of one tensor to `out` float32 [n], contiguous."""
    DECODERS[encoding][0](raw, out)
