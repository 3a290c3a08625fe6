"""Where the tensors lie in a folder of *.safetensors files: headers only, every number checked.

Formats that execute code when they are read (pickles: .bin, .pt, .pth, .ckpt) are refused.
"""

from math import prod
from pathlib import Path
from typing import Any

from stages.runtime.models.errors import ModelError
from stages.runtime.models.jsonfile import parse_object, read_object
from stages.runtime.models.spec import TensorEntry

ELEMENT_BYTES = {"F32": 4, "F16": 2, "BF16": 2}  # the encodings our engine reads
MAX_HEADER = 100 << 20  # bytes, the format's own limit
_INDEX = "model.safetensors.index.json"
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files that make up the model, sorted. Raises ModelError when there are none."""
    index = folder / _INDEX
    if index.is_file():
        return _indexed(folder, read_object(index).get("weight_map"))
    files = sorted(folder.glob("*.safetensors"))
    if len(files) == 1:
        return files
    if files:
        raise ModelError(f"{folder}: {len(files)} safetensors files but no {_INDEX} to order them")
    pickles = sorted(path.name for pattern in _PICKLES for path in folder.glob(pattern))
    if pickles:
        raise ModelError(
            f"{folder}: only pickled weights ({pickles[0]}), which run code when opened and are never "
            "read here; convert them to safetensors"
        )
    raise ModelError(f"{folder}: no *.safetensors file")


def _indexed(folder: Path, weight_map: object) -> list[Path]:
    if not isinstance(weight_map, dict) or not weight_map:
        raise ModelError(f"{folder / _INDEX}: weight_map should name a file for each tensor")
    names = set(map(str, weight_map.values()))
    for name in names:
        if Path(name).name != name or not name.endswith(".safetensors"):
            raise ModelError(
                f"{folder / _INDEX}: {name!r} is not a safetensors file of this folder"
            )
        if not (folder / name).is_file():
            raise ModelError(f"{folder}: the shard {name} is missing; fetch the model again")
    return sorted(folder / name for name in names)


def read_index(files: list[Path]) -> dict[str, TensorEntry]:
    """Tensor name → entry over all `files`. Raises ModelError on damage or unsupported encodings."""
    tensors: dict[str, TensorEntry] = {}
    for file in files:
        for entry in _read_header(file):
            if entry.name in tensors:
                raise ModelError(f"{file}: tensor {entry.name!r} stands in another file too")
            tensors[entry.name] = entry
    return tensors


def _read_header(path: Path) -> list[TensorEntry]:
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(0)
            length = int.from_bytes(file.read(8), "little")
            if size < 8 or length > min(MAX_HEADER, size - 8):
                raise ModelError(
                    f"{path}: damaged safetensors file: {size} bytes, header of {length}"
                )
            header = parse_object(file.read(length), f"{path}: header")
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror or error}") from error
    header.pop("__metadata__", None)
    entries = [_entry(path, name, value, 8 + length, size) for name, value in header.items()]
    _refuse_unsupported(path, entries)
    return _without_overlap(path, entries)


def _entry(path: Path, name: str, value: Any, base: int, size: int) -> TensorEntry:
    """One header entry, its byte range inside the file."""
    try:
        encoding, shape, (begin, end) = value["dtype"], value["shape"], value["data_offsets"]
        sound = (
            isinstance(encoding, str)
            and all(type(n) is int for n in (begin, end, *shape))
            and all(n >= 1 for n in shape)
            and 0 <= begin <= end <= size - base
        )
    except (KeyError, TypeError, ValueError):
        sound = False
    if not sound:
        raise ModelError(f"{path}: damaged safetensors file: the entry of tensor {name!r}")
    return TensorEntry(name, encoding, tuple(shape), path, base + begin, end - begin)


def _refuse_unsupported(path: Path, entries: list[TensorEntry]) -> None:
    refused = sorted({entry.encoding for entry in entries if entry.encoding not in ELEMENT_BYTES})
    if refused:
        raise ModelError(
            f"{path}: tensors are stored as {', '.join(refused)}; supported are "
            f"{', '.join(ELEMENT_BYTES)}"
        )


def _without_overlap(path: Path, entries: list[TensorEntry]) -> list[TensorEntry]:
    end = 0
    for entry in sorted(entries, key=lambda one: one.offset):
        if prod(entry.shape) * ELEMENT_BYTES[entry.encoding] != entry.nbytes:
            raise ModelError(
                f"{path}: tensor {entry.name!r}: {entry.nbytes} bytes for shape {entry.shape}"
            )
        if entry.offset < end:
            raise ModelError(f"{path}: tensor {entry.name!r} overlaps another one")
        end = entry.offset + entry.nbytes
    return entries
