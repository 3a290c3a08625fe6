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
    """

    def __init__(self, text: Text, stops: Sequence[str], *, with_ids: bool) -> None:
        self.tokens = 0
        self.stopped = False
        self._text = text
        self._stop = StopMatcher(stops)
        self._ids: list[int] | None = [] if with_ids else None
        self._buffer = ""
        self._seq = 0
        self._offset = 0  # tokens in earlier chunks

    def push(self, ids: Sequence[int]) -> None:
        """More tokens; look at `stopped` afterwards."""
        if self._stop.active:
            self._push_watching(ids)
        else:
            self._buffer += self._text.push(ids)
            self._count(ids)

    def _push_watching(self, ids: Sequence[int]) -> None:
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

    def flush(self) -> None:
        """No more tokens come: text that was held back is certain now."""
        if not self.stopped:
            text, self.stopped = self._stop.push(self._text.flush())
            self._buffer += text + self._stop.flush()

    def cut(self) -> ChunkOut | None:
        """What has gathered since the last chunk, if a client would notice it."""
        if not self._buffer and not self._ids:
            return None
        chunk = ChunkOut(self._seq, self._offset, self._buffer, self._ids)
        self._seq += 1
        self._offset = self.tokens
        self._buffer = ""
        self._ids = [] if self._ids is not None else None
        return chunk
