"""A stream of server-sent events: pure, from what sessions say to the bytes that a client gets."""

from typing import Final

from contracts.client import Complete, Queued
from contracts.errors import ErrorInfo
from stages.egress.http.errors import HttpError, invalid, problem
from stages.egress.http.forms import ENCODE, ChunkForm, failure
from stages.egress.http.inbox import Said
from stages.egress.output import ChunkOut

DONE: Final = b"data: [DONE]\n\n"
_OFFSET_DIGITS: Final = 8


def event_id(request_id: str, next_offset: int) -> str:
    """Names the place after an event: whoever has it resumes with the token `next_offset`."""
    return f"{request_id}:{next_offset}"


def read_event_id(text: str) -> tuple[str, int]:
    """Request and offset of a `Last-Event-ID`; raises `HttpError`."""
    request_id, _, offset = text.rpartition(":")
    if (
        not request_id
        or len(offset) > _OFFSET_DIGITS
        or not (offset.isascii() and offset.isdigit())
    ):
        shown = text[:80]
        raise invalid(
            f"Last-Event-ID is {shown!r}: it should be the id of an event of a stream, "
            "<request id>:<offset>; send the last one that you received",
            "Last-Event-ID",
        )
    return request_id, int(offset)


class EventWriter:
    """One call's events. `request_id` is None where the stream cannot be resumed (several answers).
    `start`: the offset after which the client goes on; it has had the first chunk."""

    def __init__(
        self, form: ChunkForm, choices: int, *, request_id: str | None, usage: bool, start: int = 0
    ) -> None:
        self.over = False
        self.problem: HttpError | None = None
        self._form = form
        self._choices = choices
        self._request_id = request_id
        self._usage = usage
        self._begun = set(range(choices)) if start else set()  # choices with their first chunk
        self._completes: dict[int, Complete] = {}
        self._next_offset = start

    def take(self, choice: int, said: Said) -> bytes:
        """The events that follow from one message; look at `over` and `problem` afterwards."""
        match said:
            case ChunkOut():
                return self._chunk(choice, said)
            case Queued():
                # A comment without an empty line: some clients take that for an event.
                return b": queued, %d before this one\n" % said.position
            case Complete():
                return self._complete(choice, said)
            case ErrorInfo():
                return self._fail(problem(said))

    def _chunk(self, choice: int, chunk: ChunkOut) -> bytes:
        self._next_offset = chunk.next_offset
        return self._first(choice) + self._event(self._form.text(choice, chunk.text))

    def _first(self, choice: int) -> bytes:
        if choice in self._begun:
            return b""
        self._begun.add(choice)
        first = self._form.first(choice)
        return b"" if first is None else b"data: " + first + b"\n\n"

    def _event(self, data: bytes) -> bytes:
        if self._request_id is None:
            return b"data: " + data + b"\n\n"
        place = event_id(self._request_id, self._next_offset).encode()
        return b"id: " + place + b"\ndata: " + data + b"\n\n"

    def _complete(self, choice: int, complete: Complete) -> bytes:
        failed = failure(complete)
        if failed is not None:
            return self._fail(failed)
        self._completes[choice] = complete
        events = self._first(choice)
        events += self._event(self._form.last(choice, complete))
        if len(self._completes) < self._choices:
            return events
        self.over = True
        if self._usage:
            events += b"data: " + self._form.usage(self._completes) + b"\n\n"
        return events + DONE

    def _fail(self, failed: HttpError) -> bytes:
        """No [DONE] after it: nobody may take what came for a whole answer."""
        self.over, self.problem = True, failed
        return b"data: " + ENCODE(failed.envelope) + b"\n\n"
