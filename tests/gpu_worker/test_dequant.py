"""Stored bytes decode to exactly what the reference implementation gives."""

import numpy as np
import pytest
from gguf import GGMLQuantizationType, quants

from gpu_worker.model.dequant import dequantize, stored_bytes


@pytest.mark.parametrize("encoding", ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1"])
def test_decodes_as_the_gguf_package_does(encoding: str) -> None:
    values = np.random.default_rng(1).standard_normal((6, 96)).astype(np.float32)
    kind = GGMLQuantizationType[encoding]
    stored = quants.quantize(values, kind)
    raw = np.ascontiguousarray(stored).view(np.uint8).reshape(-1)
    assert stored_bytes(encoding, values.size) == raw.size
    out = np.full(values.size, np.nan, dtype=np.float32)
    dequantize(encoding, raw, out)
    np.testing.assert_array_equal(out.reshape(values.shape), quants.dequantize(stored, kind))


def test_other_encodings_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match="Q6_K is not supported"):
        stored_bytes("Q6_K", 256)
    with pytest.raises(ValueError, match="whole number"):
        stored_bytes("Q8_0", 33)
