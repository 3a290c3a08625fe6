"""A NATS client's inbox. nats-server itself cuts off a client that does not read."""

import logging
import time

import nats.errors

from contracts.client import Accepted, Complete, Queued, Refused
from contracts.errors import ErrorCode, ErrorInfo
from stages.egress.output import CHUNK_ENCODER, ChunkOut
from stages.runtime.bus import Bus

log = logging.getLogger("headrace.egress")


class NatsSink:
    """One attachment of a client; `gone` is its own, so that an inbox left behind ends nothing."""

    def __init__(self, bus: Bus, request_id: str, inbox: str, gone: str) -> None:
        self._bus = bus
        self._request_id = request_id
        self._inbox = inbox
        self.gone = gone
        self.told_s = time.monotonic()  # when something last went out

    async def send(self, message: Accepted | Queued | Complete | Refused) -> None:
        """Publish as JSON, without keys that have no value."""
        await self._publish(message.model_dump_json(exclude_none=True).encode())

    async def chunk(self, chunk: ChunkOut) -> bool:
        """Publish; False when our own connection cannot take any more."""
        return await self._publish(CHUNK_ENCODER.encode(chunk))

    def cut_off(self, error: ErrorInfo) -> None:
        """A client that was replaced must know it, or it would resume, and replace the other; one
        whose egress stops resumes sooner. One that is too slow does not need more to read."""
        if error.code is not ErrorCode.SATURATED:
            self._bus.spawn(self.send(Refused(request_id=self._request_id, error=error)))

    def first_unsent(self) -> int | None:
        """Nothing waits here."""
        return None

    async def _publish(self, payload: bytes) -> bool:
        self.told_s = time.monotonic()
        try:
            await self._bus.client.publish(self._inbox, payload, reply=self.gone)
        except (OSError, nats.errors.Error) as error:
            log.warning("nothing goes to %s: %r", self._inbox, error)
            return False
        return True
