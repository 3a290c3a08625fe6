"""What a door must offer to a session."""

from typing import Protocol

from contracts.client import Accepted, Complete, Queued, Refused
from stages.egress.output import ChunkOut


class Sink(Protocol):
    """One client's end of the line. Neither method may wait for the client."""

    async def send(self, message: Accepted | Queued | Complete | Refused) -> None:
        """Anything but text."""

    async def chunk(self, chunk: ChunkOut) -> bool:
        """Text; False when the client is so far behind that it has to be given up."""

    def first_unsent(self) -> int | None:
        """Token offset of the first chunk that is still waiting here; None when none is."""
