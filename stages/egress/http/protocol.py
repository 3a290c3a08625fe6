"""uvicorn's connection with what it lacks: our error envelope, bounds for what comes before a request is
complete, and an end for clients that stop reading."""

import asyncio
from typing import Final

from pydantic_core import to_json
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from stages.egress.http.errors import JSON, HttpError, invalid
from stages.runtime.clock import new_request_id

# A connection that takes nothing for so long is closed at once, also while the stage drains.
STALLED_S: Final = 30.0
IDLE_S: Final = 75.0  # a connection without a request is closed after this
HEAD_S: Final = 30.0  # from the first byte of a request line to the end of its headers
LINGER_S: Final = 2.0  # what a refused client still sends is read for so long
HEAD_BYTES: Final = 64 << 10  # request line and headers; the parser itself has no bound


class Connection(HttpToolsProtocol):
    """One client's connection."""

    stalled: asyncio.TimerHandle | None = None
    _waiting: asyncio.TimerHandle | None = None  # for the rest of a head, or for the next one
    _in_head = False
    _refused = False  # told so; what still comes is thrown away
    _head_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client has connected; it may be in no hurry, but not for ever."""
        super().connection_made(transport)
        self._wait(IDLE_S)

    def data_received(self, data: bytes) -> None:
        """More of a request. An endless header never gets to `on_header`, so it is counted here."""
        if self._refused:
            return
        if self._in_head:
            self._head_bytes += len(data)
            if self._head_bytes > HEAD_BYTES:
                self.send_400_response("")
                return
        super().data_received(data)

    def on_message_begin(self) -> None:
        """A request line begins."""
        super().on_message_begin()
        self._in_head, self._head_bytes = True, 0
        self._wait(HEAD_S)

    def on_url(self, url: bytes) -> None:
        """A piece of the request's target."""
        self._bound(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header, or a trailer."""
        self._bound(len(name) + len(value))
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """From here on the call has its own deadlines."""
        self._in_head = False
        self._stop_waiting()
        super().on_headers_complete()

    def on_response_complete(self) -> None:
        """The next request may come, or the rest of this one's body, which nobody needs."""
        super().on_response_complete()
        if not self._in_head and (self.cycle is None or self.cycle.response_complete):
            self._wait(IDLE_S)

    def _bound(self, size: int) -> None:
        """Raises for the parser, which then calls `send_400_response`."""
        self._head_bytes += size
        if self._head_bytes > HEAD_BYTES:
            raise ValueError("the head of the request is too large")

    def _wait(self, seconds: float) -> None:
        self._stop_waiting()
        self._waiting = self.loop.call_later(seconds, self._waited, seconds)

    def _stop_waiting(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None

    def _waited(self, seconds: float) -> None:
        self._waiting = None
        if self.cycle is not None and not self.cycle.response_complete:
            self._wait(seconds)  # the answer to an earlier request is not to be cut
        else:
            self.transport.close()

    def pause_writing(self) -> None:
        """The client has not read for a while."""
        super().pause_writing()
        self.stalled = self.loop.call_later(STALLED_S, self.transport.abort)

    def resume_writing(self) -> None:
        """It reads again."""
        self._reset()
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """It has gone."""
        self._reset()
        self._stop_waiting()
        super().connection_lost(exc)

    def _reset(self) -> None:
        if self.stalled is not None:
            self.stalled.cancel()
            self.stalled = None

    def send_400_response(self, msg: str) -> None:
        """What is no HTTP at all, or too much of it before the body."""
        if self._refused or self.transport.is_closing():
            return
        self._refused = True
        problem = invalid("this is no HTTP/1.1 request; correct it")
        if self._head_bytes > HEAD_BYTES:
            message = (
                f"the request line and headers have more than {HEAD_BYTES} bytes; shorten them"
            )
            problem = invalid(message, status=431)
        self._stop_waiting()
        self.transport.write(_whole(problem))
        self.transport.write_eof()
        # Closed at once, what the client still sends would make its system drop our answer.
        self._waiting = self.loop.call_later(LINGER_S, self.transport.close)


def _whole(problem: HttpError) -> bytes:
    """An answer for which there is no request."""
    body = to_json(problem.envelope)
    head = (
        f"content-type: {JSON}\r\ncontent-length: {len(body)}\r\nconnection: close\r\n"
        f"x-request-id: {new_request_id()}\r\nx-should-retry: false\r\n\r\n"
    )
    return STATUS_LINE[problem.status] + head.encode() + body
