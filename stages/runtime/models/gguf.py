"""A bounded reader of GGUF files (versions 2 and 3): metadata and where each tensor's bytes lie.

Everything in the file is untrusted. Each count, length and offset is checked against the file size
before it is used, so a hostile file costs one `ModelError`, never a crash, a hang or a huge allocation.
"""

import mmap
from dataclasses import dataclass
from math import prod
from pathlib import Path

from stages.runtime.models.errors import ModelError
from stages.runtime.models.gguf_cursor import (
    ARRAY,
    MAX_KEY,
    MAX_STRING,
    SCALARS,
    STRING,
    U32,
    U64,
    Cursor,
    GgufArray,
    decode_strings,
)

Scalar = int | float | bool | str

# name: (weights in a block, bytes in a block)
SUPPORTED_ENCODINGS = {
    "F32": (1, 4),
    "F16": (1, 2),
    "Q4_0": (32, 18),
    "Q4_1": (32, 20),
    "Q8_0": (32, 34),
}
# fmt: off
_ENCODINGS = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 6: "Q5_0", 7: "Q5_1", 8: "Q8_0", 9: "Q8_1", 10: "Q2_K",
    11: "Q3_K", 12: "Q4_K", 13: "Q5_K", 14: "Q6_K", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS",
    18: "IQ3_XXS", 19: "IQ1_S", 20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS", 24: "I8",
    25: "I16", 26: "I32", 27: "I64", 28: "F64", 29: "IQ1_M", 30: "BF16", 34: "TQ1_0", 35: "TQ2_0",
    39: "MXFP4", 40: "NVFP4", 41: "Q1_0",
}
# fmt: on
MAX_ENTRIES = 65_536  # metadata keys, and tensors
MAX_DIMS = 4


@dataclass(frozen=True)
class GgufTensor:
    """One tensor as the file describes it. `shape` is row-major; `offset` counts from the file's start."""

    name: str
    encoding: str
    shape: tuple[int, ...]
    offset: int  # bytes
    nbytes: int


@dataclass(frozen=True)
class GgufFile:
    """A parsed file: scalar metadata, arrays decoded only when asked for, and the tensors."""

    path: Path
    size: int  # bytes
    metadata: dict[str, Scalar]
    arrays: dict[str, GgufArray]
    tensors: tuple[GgufTensor, ...]

    def strings(self, key: str) -> list[str]:
        """The string array `key`. Raises ModelError when it is missing or holds something else."""
        array = self.arrays.get(key)
        if array is None or array.kind != STRING:
            raise ModelError(f"{self.path}: metadata {key!r} should be an array of strings")
        with self.path.open("rb") as file:
            file.seek(array.start)
            return decode_strings(
                Cursor(self.path, file.read(array.end - array.start)), array.count
            )

    def numbers(self, key: str) -> list[float]:
        """The numeric array `key`. Raises ModelError when it is missing or holds strings."""
        array = self.arrays.get(key)
        if array is None or array.kind not in SCALARS:
            raise ModelError(f"{self.path}: metadata {key!r} should be an array of numbers")
        with self.path.open("rb") as file:
            file.seek(array.start)
            data = file.read(array.end - array.start)
        # struct instead of numpy: its import would be a fifth of a stage's start
        return [value for (value,) in SCALARS[array.kind].iter_unpack(data)]


def read_gguf(path: Path) -> GgufFile:
    """Parse the header of `path`. Raises ModelError on anything that is not a sound, supported GGUF."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            if size < 24:
                raise ModelError(f"{path}: {size} bytes are too few for a GGUF file (at least 24)")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return _parse(Cursor(path, data))
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror or error}") from error


def _parse(reader: Cursor) -> GgufFile:
    tensors, keys = _header(reader)
    metadata: dict[str, Scalar] = {}
    arrays: dict[str, GgufArray] = {}
    for _ in range(keys):
        key = reader.string(MAX_KEY, "a metadata key")
        if key in metadata or key in arrays:
            raise reader.fail(f"metadata {key!r} stands twice")
        kind = reader.scalar(U32, f"the type of {key!r}")
        if kind == ARRAY:
            arrays[key] = reader.array(f"metadata {key!r}")
        else:
            metadata[key] = _value(reader, kind, key)
    infos = [_tensor_info(reader) for _ in range(tensors)]
    _refuse_unsupported(reader.path, infos)
    return GgufFile(reader.path, reader.size, metadata, arrays, _place(reader, infos, metadata))


def _header(reader: Cursor) -> tuple[int, int]:
    """(tensor count, metadata count), both within bounds."""
    if reader.data[:4] != b"GGUF":
        raise ModelError(f"{reader.path}: not a GGUF file (it starts with {reader.data[:4]!r})")
    reader.at = 4
    version = reader.scalar(U32, "the version")
    if version not in (2, 3):
        hint = " (a big-endian file?)" if version >> 16 else ""
        raise ModelError(
            f"{reader.path}: GGUF version {version}{hint}; versions 2 and 3 are supported"
        )
    tensors, keys = reader.scalar(U64, "the tensor count"), reader.scalar(U64, "the key count")
    if tensors > MAX_ENTRIES or keys > MAX_ENTRIES:
        raise reader.fail(
            f"{tensors} tensors and {keys} keys; at most {MAX_ENTRIES} each are allowed"
        )
    return tensors, keys


def _value(reader: Cursor, kind: int, key: str) -> Scalar:
    if kind == STRING:
        return reader.string(MAX_STRING, f"metadata {key!r}")
    if kind not in SCALARS:
        raise reader.fail(f"metadata {key!r} has the unknown type {kind}")
    return reader.scalar(SCALARS[kind], f"metadata {key!r}")


_Info = tuple[str, str, tuple[int, ...], int]  # name, encoding, shape, offset in the data section


def _tensor_info(reader: Cursor) -> _Info:
    name = reader.string(MAX_KEY, "a tensor name")
    rank = reader.scalar(U32, f"the rank of {name!r}")
    if not 1 <= rank <= MAX_DIMS:
        raise reader.fail(f"tensor {name!r} has {rank} dimensions, 1 to {MAX_DIMS} are allowed")
    dims = tuple(reader.scalar(U64, f"the shape of {name!r}") for _ in range(rank))
    kind = reader.scalar(U32, f"the encoding of {name!r}")
    offset = reader.scalar(U64, f"the offset of {name!r}")
    # GGUF lists the fastest dimension first, the reverse of torch and numpy
    return name, _ENCODINGS.get(kind, f"type {kind}"), dims[::-1], offset


def _refuse_unsupported(path: Path, infos: list[_Info]) -> None:
    refused: dict[str, list[str]] = {}
    for name, encoding, _, _ in infos:
        if encoding not in SUPPORTED_ENCODINGS:
            refused.setdefault(encoding, []).append(name)
    if refused:
        found = ", ".join(f"{kind} ({len(names)}: {names[0]}…)" for kind, names in refused.items())
        raise ModelError(
            f"{path}: tensors are encoded as {found}; supported are "
            f"{', '.join(SUPPORTED_ENCODINGS)}. Use a file quantised to one of these"
        )


def _place(
    reader: Cursor, infos: list[_Info], metadata: dict[str, Scalar]
) -> tuple[GgufTensor, ...]:
    """Turn data-section offsets into file offsets; refuse what lies outside the file or overlaps."""
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or not 1 <= alignment <= 65_536:
        raise reader.fail(f"general.alignment is {alignment!r}; 1 to 65536 is expected")
    base = -(-reader.at // alignment) * alignment
    placed = tuple(_sized(reader, info, base) for info in infos)
    if len({tensor.name for tensor in placed}) != len(placed):
        raise reader.fail("a tensor name stands twice")
    end = base
    for tensor in sorted(placed, key=lambda one: one.offset):
        if tensor.offset < end:
            raise reader.fail(f"tensor {tensor.name!r} overlaps another one")
        end = tensor.offset + tensor.nbytes
    return placed


def _sized(reader: Cursor, info: _Info, base: int) -> GgufTensor:
    name, encoding, shape, offset = info
    block, size = SUPPORTED_ENCODINGS[encoding]
    if not all(shape) or shape[-1] % block:
        raise reader.fail(
            f"tensor {name!r} of shape {shape} is not made of {encoding} blocks of {block}"
        )
    nbytes = prod(shape) // block * size
    if base + offset + nbytes > reader.size:
        raise reader.fail(
            f"tensor {name!r} needs {nbytes} bytes at {base + offset}, the file has {reader.size}"
        )
    return GgufTensor(name, encoding, shape, base + offset, nbytes)
