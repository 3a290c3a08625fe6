"""What a door must offer to a session."""

from typing import Protocol

from contracts.client import Accepted, Complete, Queued, Refused
from contracts.errors import ErrorInfo
from stages.egress.output import ChunkOut


class Sink(Protocol):
    """One client's end of the line. Neither method may wait for the client."""

    async def send(self, message: Accepted | Queued | Complete | Refused) -> None:
        """Anything but text."""

    async def chunk(self, chunk: ChunkOut) -> bool:
        """Text; False when the client is so far behind that it has to be given up."""

    def cut_off(self, error: ErrorInfo) -> None:
        """The stream ends here without its terminal; nothing is sent here any more.

        `conflict`: another client has resumed the request; `saturated`: this one was too slow.
        """

    def first_unsent(self) -> int | None:
        """Token offset of the first chunk that is still waiting here; None when none is."""


class Nobody:
    """Where a session without a client speaks to: it collects tokens until one resumes it."""

    async def send(self, message: Accepted | Queued | Complete | Refused) -> None:
        """Unheard."""

    async def chunk(self, chunk: ChunkOut) -> bool:
        """Unheard, and never too much."""
        return True

    def cut_off(self, error: ErrorInfo) -> None:
        """Unheard."""

    def first_unsent(self) -> int | None:
        """Nothing waits here."""
        return None
