"""A cursor over the bytes of a GGUF file: numbers, strings and arrays, each checked against the file size."""

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path

from stages.runtime.models.errors import ModelError

SCALARS = {
    0: struct.Struct("<B"),
    1: struct.Struct("<b"),
    2: struct.Struct("<H"),
    3: struct.Struct("<h"),
    4: struct.Struct("<I"),
    5: struct.Struct("<i"),
    6: struct.Struct("<f"),
    7: struct.Struct("<?"),
    10: struct.Struct("<Q"),
    11: struct.Struct("<q"),
    12: struct.Struct("<d"),
}
STRING, ARRAY = 8, 9
U32, U64 = struct.Struct("<I"), struct.Struct("<Q")

MAX_KEY = 1_024  # bytes
MAX_STRING = 4 << 20  # bytes
MAX_STRINGS = 4_000_000  # strings in all arrays together: walking them takes about a second
MAX_ELEMENTS = 1 << 24  # numbers in one array


@dataclass(frozen=True)
class GgufArray:
    """Where an array's elements lie in the file; `kind` is STRING or a key of SCALARS."""

    kind: int
    count: int
    start: int  # byte of the first element
    end: int


def decode_strings(reader: "Cursor", count: int) -> list[str]:
    """Decode `count` length-prefixed strings whose lengths were already checked once."""
    return [reader.string(MAX_STRING, "an array element") for _ in range(count)]


class Cursor:
    """A cursor over the file's bytes that refuses to leave them."""

    def __init__(self, path: Path, data: bytes | mmap.mmap) -> None:
        self.path, self.data, self.size, self.at = path, data, len(data), 0
        self.strings_left = MAX_STRINGS

    def fail(self, what: str) -> ModelError:
        return ModelError(f"{self.path}: damaged or hostile GGUF file: {what} (at byte {self.at})")

    def skip(self, count: int, what: str) -> int:
        """Step over `count` bytes; returns where they start."""
        start = self.at
        if count > self.size - start:
            raise self.fail(f"{what} needs {count} bytes, {self.size - start} are left")
        self.at = start + count
        return start

    def scalar(self, layout: struct.Struct, what: str) -> int:
        """One little-endian number (floats and booleans too; the caller knows)."""
        value: int = layout.unpack_from(self.data, self.skip(layout.size, what))[0]
        return value

    def string(self, limit: int, what: str) -> str:
        length = self.scalar(U64, what)
        if length > limit:
            raise self.fail(f"{what} has {length} bytes, at most {limit} are allowed")
        start = self.skip(length, what)
        try:
            return self.data[start : self.at].decode()
        except UnicodeDecodeError as error:
            raise self.fail(f"{what} is not UTF-8") from error

    def array(self, what: str) -> GgufArray:
        kind, count = self.scalar(U32, what), self.scalar(U64, what)
        if kind == STRING:
            return self._string_array(count, what)
        if kind not in SCALARS:
            raise self.fail(f"{what} is an array of type {kind}; numbers and strings are known")
        if count > MAX_ELEMENTS:
            raise self.fail(f"{what} has {count} elements, at most {MAX_ELEMENTS} are allowed")
        start = self.skip(count * SCALARS[kind].size, what)
        return GgufArray(kind, count, start, self.at)

    def _string_array(self, count: int, what: str) -> GgufArray:
        """Walks the lengths only; the strings stay bytes until somebody needs them."""
        if count > min(self.strings_left, (self.size - self.at) // 8):
            raise self.fail(f"{what} claims {count} strings, more than fit")
        self.strings_left -= count
        start = at = self.at
        unpack, data, last = U64.unpack_from, self.data, self.size - 8
        for _ in range(count):
            if at > last:
                raise self.fail(f"{what} runs past the end of the file")
            at += 8 + unpack(data, at)[0]
        if at > self.size:
            raise self.fail(f"{what} runs past the end of the file")
        self.at = at
        return GgufArray(STRING, count, start, at)
