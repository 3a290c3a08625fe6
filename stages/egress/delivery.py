"""Tokens of an accepted request become chunks of text, up to a stop string."""

from collections.abc import Sequence
from typing import Protocol

from stages.egress.output import ChunkOut
from stages.egress.stop import StopMatcher


class Text(Protocol):
    """An incremental detokenizer."""

    def push(self, ids: Sequence[int]) -> str:
        """The text that these ids complete."""

    def flush(self) -> str:
        """What is left at the end."""


class Delivery:
    """What has been handed to the client's door.

    A token is delivered once its text, or what precedes the stop string in it, is handed over. With
    a stop string the last delivered token is the one that completed it; later ones never count.

    Where the text may be cut: E(n) is the text that the first n tokens make certain (a character in
    pieces and what may begin a stop string are not). It depends on the tokens alone, not on how they
    came. All chunks before one with offset n held exactly E(n), so a delivery from `start` = n says
    what is beyond it. Text that only the end makes certain has a place of its own: after it the
    offset is one more than all tokens.
    """

    def __init__(self, text: Text, stops: Sequence[str], *, with_ids: bool, start: int = 0) -> None:
        self.tokens = 0
        self.stopped = False
        self._text = text
        self._stop = StopMatcher(stops)
        self._ids: list[int] | None = [] if with_ids else None
        self._buffer = ""
        self._seq = 0
        self._start = start  # the client has E(start)
        self._offset = start  # tokens in earlier chunks
        self._flushed = False

    def push(self, ids: Sequence[int]) -> None:
        """More tokens; look at `stopped` afterwards."""
        known = self._start - self.tokens
        if known > 0:
            self._take(ids[:known])
            self._forget()
            ids = ids[known:]
        if not self.stopped:
            self._take(ids)

    def _take(self, ids: Sequence[int]) -> None:
        if self._stop.active:
            self._take_watching(ids)
        else:
            self._buffer += self._text.push(ids)
            self._count(ids)

    def _take_watching(self, ids: Sequence[int]) -> None:
        for index in ids:
            if self.stopped:
                return
            text, self.stopped = self._stop.push(self._text.push((index,)))
            self._buffer += text
            self._count((index,))

    def _count(self, ids: Sequence[int]) -> None:
        self.tokens += len(ids)
        if self._ids is not None:
            self._ids += ids

    def _forget(self) -> None:
        self._buffer = ""
        self._ids = [] if self._ids is not None else None

    def flush(self) -> None:
        """No more tokens come: text that was held back is certain now."""
        if self.stopped:
            return
        text, self.stopped = self._stop.push(self._text.flush())
        text += self._stop.flush()
        if text and self.tokens >= self._start:
            self._buffer += text
            self._flushed = True

    def cut(self) -> ChunkOut | None:
        """What has gathered since the last chunk, if a client would notice it."""
        if not self._buffer and not self._ids:
            return None
        after = self.tokens + self._flushed
        chunk = ChunkOut(self._seq, self._offset, self._buffer, self._ids, after)
        self._seq += 1
        self._offset = self.tokens
        self._forget()
        return chunk
