"""Text ↔ token ids. Text from users can never become a control token; templates can."""

import json
import re
import threading
from collections.abc import Iterable, Sequence

from tokenizers import Tokenizer as RawTokenizer

from stages.runtime.models.errors import ModelError


class Tokenizer:
    """One model's tokenizer. Safe to share between threads.

    A control token is one the tokenizer marks as special, or one that starts or ends a text. Other added
    tokens (runs of spaces, `<think>`) are ordinary vocabulary by their author's declaration.
    """

    def __init__(
        self, text: str, *, bos_id: int | None, eos_ids: Iterable[int], source: str
    ) -> None:
        """`text` is the content of a tokenizer.json. Raises ModelError when it is not a sound one."""
        self._raw = _parse(text, source)
        self.bos_id = bos_id
        self.eos_ids = tuple(eos_ids)
        self.highest_id = self._highest_id()
        self.control = self._control_tokens()
        self.is_byte_level = _is_byte_level(self._raw)
        self._pattern = _alternatives(self.control)
        self._control_ids = frozenset(self.control.values())
        added = self._raw.get_added_tokens_decoder().items()
        self._special_ids = frozenset(index for index, token in added if token.special)
        self._switch = threading.Lock()
        self._adds_bos = self._raw.encode("").ids[:1] == [bos_id]

    def _highest_id(self) -> int:
        return max(self._raw.get_vocab(with_added_tokens=True).values(), default=-1)

    def _control_tokens(self) -> dict[str, int]:
        ends = {self.bos_id, *self.eos_ids}
        added = self._raw.get_added_tokens_decoder().items()
        control = {token.content: index for index, token in added if token.special or index in ends}
        names = {index: self._raw.id_to_token(index) for index in ends if index is not None}
        return control | {name: index for index, name in names.items() if name is not None}

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        """Ids of `text`, nothing added. With `special`, control tokens in it are recognised: only for
        text that a template wrote. Without, `<|im_end|>` is the ten characters it looks like.
        """
        if special:
            return self._encode(text, special=True)
        ids = self._encode(text, special=False)
        return ids if self._control_ids.isdisjoint(ids) else self._encode_broken_up(text)

    def encode_prompt(self, text: str) -> list[int]:
        """Ids of a bare prompt for `generate`: plain text, after BOS where the model expects one."""
        ids = self.encode(text)
        return [self.bos_id, *ids] if self._adds_bos and self.bos_id is not None else ids

    def decode(self, ids: Sequence[int]) -> str:
        """Text of `ids`; control tokens are left out, bytes that are not UTF-8 become U+FFFD."""
        return str(self._raw.decode(list(ids), skip_special_tokens=True))

    def token(self, index: int) -> str | None:
        """The vocabulary's own spelling of one token; None outside the vocabulary."""
        name = self._raw.id_to_token(index)
        return None if name is None else str(name)

    def split_control(self, text: str) -> list[str | int]:
        """`text` cut at its control tokens: plain pieces as str, control tokens as their id, in order."""
        pieces: list[str | int] = []
        at = 0
        for match in self._pattern.finditer(text):
            pieces += [text[at : match.start()], self.control[match[0]]]
            at = match.end()
        return [piece for piece in (*pieces, text[at:]) if piece != ""]

    def is_skipped(self, index: int) -> bool:
        """Whether `decode` leaves this id out."""
        return index in self._special_ids

    def is_control(self, index: int) -> bool:
        """Whether plain text may never produce this id."""
        return index in self._control_ids

    def _encode(self, text: str, *, special: bool) -> list[int]:
        try:
            with self._switch:  # the library keeps this choice as state of the tokenizer
                self._raw.encode_special_tokens = not special
                return list(self._raw.encode(text, add_special_tokens=False).ids)
        except TypeError as error:  # what the library says to a str that is not valid Unicode
            raise ModelError(f"text holds half a surrogate pair{_where(text)}") from error

    def _encode_broken_up(self, text: str) -> list[int]:
        """For tokenizers whose model itself knows the control strings: cut each of them in two."""
        pieces: list[str] = []
        at = 0
        for match in self._pattern.finditer(text):
            pieces.append(text[at : match.start() + 1])
            at = match.start() + 1
        ids = [
            index for piece in (*pieces, text[at:]) for index in self._encode(piece, special=False)
        ]
        return [index for index in ids if index not in self._control_ids]


def _where(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return f" at character {error.start}"
    return ""


def _parse(text: str, source: str) -> RawTokenizer:
    try:
        return RawTokenizer.from_str(text)
    except Exception as error:
        raise ModelError(f"{source}: not a usable tokenizer.json: {str(error)[:200]}") from error


def _is_byte_level(raw: RawTokenizer) -> bool:
    if raw.decoder is None:
        return False
    return bool(json.loads(raw.decoder.__getstate__()).get("type") == "ByteLevel")


def _alternatives(control: Iterable[str]) -> re.Pattern[str]:
    """Longest first, so that a token wins over its own prefix. Without tokens: matches nothing."""
    names = sorted(filter(None, control), key=len, reverse=True)
    return re.compile("|".join(map(re.escape, names)) or r"(?!)")
