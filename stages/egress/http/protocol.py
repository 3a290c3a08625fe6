"""uvicorn's connection with what it lacks: our error envelope, and an end for clients that stop reading."""

import asyncio
from typing import Final

from pydantic_core import to_json
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from stages.egress.http.errors import JSON, invalid

# A connection that takes nothing for so long is closed at once, also while the stage drains.
STALLED_S: Final = 30.0


class Connection(HttpToolsProtocol):
    """One client's connection."""

    stalled: asyncio.TimerHandle | None = None

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
        super().connection_lost(exc)

    def _reset(self) -> None:
        if self.stalled is not None:
            self.stalled.cancel()
            self.stalled = None

    def send_400_response(self, msg: str) -> None:
        """What is no HTTP at all."""
        body = to_json(invalid("this is no HTTP/1.1 request; correct it").envelope)
        head = (
            f"content-type: {JSON}\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
        ).encode()
        self.transport.write(STATUS_LINE[400] + head + body)
        self.transport.close()
