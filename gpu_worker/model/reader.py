"""Named weights out of the model's files as float32, each checked against what the model needs."""

import numpy as np

from gpu_worker.model.dequant import Floats, Raw, dequantize, stored_bytes
from stages.runtime.models.spec import ModelSpec, TensorEntry


class WeightError(ValueError):
    """A weight is missing, has another shape than the model needs, or cannot be decoded."""


class WeightReader:
    """Reads tensors one at a time, so that only one exists as float32. Safe from several threads."""

    def __init__(self, spec: ModelSpec) -> None:
        self._spec = spec

    def read(self, name: str, *shape: int) -> Floats:
        """The tensor `name`, float32 of `shape`. Raises WeightError."""
        out = np.empty(shape, dtype=np.float32)
        self.read_into(out, name)
        return out

    def read_into(self, out: Floats, name: str) -> None:
        """Write the tensor `name` to `out`, contiguous and of its shape. Raises WeightError."""
        entry = self._spec.tensors.get(name)
        if entry is None:
            raise WeightError(f"{self._spec.name}: weight {name} is missing")
        if entry.shape != out.shape:
            raise WeightError(f"{self._spec.name}: {name} has shape {entry.shape}, not {out.shape}")
        dequantize(entry.encoding, self._stored(entry), out.reshape(-1))

    def read_rotary_into(self, out: Floats, name: str, heads: int) -> None:
        """A q or k projection with each head's rows in rotary pairs: (0, D/2), (1, D/2 + 1), ...

        GGUF stores them so; Hugging Face keeps all first halves before all second halves. Scores
        q.k do not change when q and k are reordered alike, and in pairs a rotation is one complex
        product.
        """
        entry = self._spec.tensors.get(name)
        if entry is None or entry.rope_interleaved:
            self.read_into(out, name)
            return
        rows, *rest = out.shape
        halves = self.read(name, *out.shape).reshape(heads, 2, rows // heads // 2, *rest)
        out[:] = np.swapaxes(halves, 1, 2).reshape(out.shape)

    def _stored(self, entry: TensorEntry) -> Raw:
        try:
            expected = stored_bytes(entry.encoding, int(np.prod(entry.shape)))
        except ValueError as error:
            raise WeightError(f"{self._spec.name}: {entry.name}: {error}") from error
        raw = np.fromfile(entry.file, dtype=np.uint8, count=entry.nbytes, offset=entry.offset)
        if len(raw) != expected or entry.nbytes != expected:
            raise WeightError(
                f"{self._spec.name}: {entry.name} has {len(raw)} bytes, not {expected}; "
                "the file is cut short or damaged"
            )
        return raw
