"""What a session has to say: chunks (the hot path, msgspec) and its one end."""

from dataclasses import dataclass
from typing import Final, NamedTuple

import msgspec

from contracts.client import FinishReason
from contracts.errors import ErrorInfo


class ChunkOut(msgspec.Struct, tag_field="type", tag="chunk", omit_defaults=True):
    """`contracts.client.Chunk` without validation: 1 µs to encode instead of 12."""

    seq: int
    offset: int
    text: str
    token_ids: list[int] | None = None
    next_offset: int = 0


CHUNK_ENCODER: Final = msgspec.json.Encoder()


@dataclass(frozen=True, slots=True)
class End:
    """Why a session ends.

    `running`: the executor or the queue must be told by a CancelNotice. `orphan`: we do not know
    the request's terms, so queueing must write its receipt.
    """

    reason: FinishReason
    error: ErrorInfo | None = None
    running: bool = True
    orphan: bool = False


class Step(NamedTuple):
    """What one event leads to: at most one chunk, then perhaps the end."""

    chunk: ChunkOut | None = None
    end: End | None = None


NOTHING: Final = Step()
