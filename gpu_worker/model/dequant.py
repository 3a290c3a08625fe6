"""Stored bytes to float32, vectorised. Block formats as in GGUF (32 weights a block).

Q8_0: fp16 scale, 32 x int8. Q4_0: fp16 scale, 16 bytes. Q4_1: fp16 scale, fp16 minimum, 16 bytes.
In a 4-bit block the low nibbles are weights 0-15 and the high nibbles 16-31.
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

Raw = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]


def _f32(raw: Raw) -> Floats:
    return raw.view(np.float32)


def _f16(raw: Raw) -> Floats:
    return raw.view(np.float16).astype(np.float32)


def _bf16(raw: Raw) -> Floats:
    return (raw.view(np.uint16).astype(np.uint32) << 16).view(np.float32)


def _half(blocks: Raw, at: int) -> Floats:
    return blocks[:, at : at + 2].copy().view(np.float16).astype(np.float32)  # [n, 1]


def _nibbles(packed: Raw) -> Floats:
    out = np.empty((len(packed), 32), dtype=np.float32)
    out[:, :16] = packed & 15
    out[:, 16:] = packed >> 4
    return out


def _q8_0(raw: Raw) -> Floats:
    blocks = raw.reshape(-1, 34)
    out = blocks[:, 2:].view(np.int8).astype(np.float32)
    out *= _half(blocks, 0)
    return out.reshape(-1)


def _q4_0(raw: Raw) -> Floats:
    blocks = raw.reshape(-1, 18)
    out = _nibbles(blocks[:, 2:])
    out -= 8.0
    out *= _half(blocks, 0)
    return out.reshape(-1)


def _q4_1(raw: Raw) -> Floats:
    blocks = raw.reshape(-1, 20)
    out = _nibbles(blocks[:, 4:])
    out *= _half(blocks, 0)
    out += _half(blocks, 2)
    return out.reshape(-1)


DECODERS: dict[str, tuple[Callable[[Raw], Floats], int, int]] = {
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


def dequantize(encoding: str, raw: Raw) -> Floats:
    """Float32 [n] from the stored bytes uint8 [m] of one tensor."""
    return DECODERS[encoding][0](raw)
