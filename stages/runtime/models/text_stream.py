"""Token ids in, text out, as it becomes certain. Never half a character; the sum equals `decode` of all."""

import codecs
import re
from collections.abc import Sequence
from functools import lru_cache

from stages.runtime.models.tokenizer import Tokenizer

_BYTE_TOKEN = re.compile(r"<0x[0-9A-Fa-f]{2}>")


class TextStream:
    """The text of one answer. `"".join(pushes) + flush()` equals `tokenizer.decode(all ids)`."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._inner = (_ByteStream if tokenizer.is_byte_level else _PieceStream)(tokenizer)

    def push(self, ids: Sequence[int]) -> str:
        """The text that these ids complete; may be empty while a character is still in pieces."""
        return self._inner.push(ids)

    def flush(self) -> str:
        """What is left at the end; an unfinished character becomes U+FFFD."""
        return self._inner.flush()


class _ByteStream:
    """Tokens are bytes: an incremental UTF-8 decoder does the rest."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, ids: Sequence[int]) -> str:
        return self._decoder.decode(b"".join(map(self._bytes, ids)))

    def flush(self) -> str:
        return self._decoder.decode(b"", final=True)

    def _bytes(self, index: int) -> bytes:
        if self._tokenizer.is_skipped(index):
            return b""
        name = self._tokenizer.token(index)
        return b"" if name is None else _token_bytes(name)


@lru_cache(maxsize=65_536)
def _token_bytes(name: str) -> bytes:
    """Byte-level vocabularies write each byte as one printable character."""
    table = _byte_of_character()
    if all(character in table for character in name):
        return bytes(table[character] for character in name)
    return name.encode()  # an added token, spelt as itself


@lru_cache(maxsize=1)
def _byte_of_character() -> dict[str, int]:
    """GPT-2's table: printable Latin-1 stands for itself, the other bytes for U+0100 and up, in order."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {
        chr(0x100 + position): byte for position, byte in enumerate(others)
    }


class _PieceStream:
    """Any other decoder: decode in chunks, each behind an anchor so that it counts as mid-text.

    Decoders of this kind treat tokens one by one, but for two things: they may strip a space at the very
    start (hence the anchor), and they judge a run of byte tokens as a whole (hence the hold-back).
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._anchor = tokenizer.encode("a")[-1:]
        self._anchor_text = tokenizer.decode(self._anchor)
        self._held: list[int] = []
        self._started = False

    def push(self, ids: Sequence[int]) -> str:
        self._held += [index for index in ids if not self._tokenizer.is_skipped(index)]
        cut = len(self._held)
        while cut and _BYTE_TOKEN.fullmatch(self._tokenizer.token(self._held[cut - 1]) or ""):
            cut -= 1
        ready, self._held = self._held[:cut], self._held[cut:]
        return self._text(ready)

    def flush(self) -> str:
        ready, self._held = self._held, []
        return self._text(ready)

    def _text(self, ids: list[int]) -> str:
        if not ids:
            return ""
        if self._started:
            return self._tokenizer.decode([*self._anchor, *ids])[len(self._anchor_text) :]
        self._started = True
        return self._tokenizer.decode(ids)
