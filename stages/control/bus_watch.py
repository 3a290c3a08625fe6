"""Whether nats-server works: it answers /healthz or lets a message through; else it is killed."""

import asyncio
import contextlib
from typing import Final
from urllib.parse import urlsplit

import nats.errors

from stages.runtime.bus import Bus

HUNG_S: Final = 10.0
PACE_S: Final = (
    5.0  # more between two looks (each takes up to 2 * ANSWER_S): we were late ourselves
)
ANSWER_S: Final = 2


class Deafness:
    """How long nothing has been heard of the server. Pure; the clock is passed in."""

    def __init__(self, now_s: float) -> None:
        self._looked_s = now_s
        self._heard_s = now_s

    def hung(self, now_s: float, heard: bool) -> bool:
        """Whether it must be killed. What we were too late to hear does not count."""
        if heard or now_s - self._looked_s > PACE_S:
            self._heard_s = now_s
        self._looked_s = now_s
        return now_s - self._heard_s >= HUNG_S


async def works(monitoring: str | None, bus: Bus | None) -> bool:
    """Whether the server answers in one way or another."""
    if monitoring is not None and await _answers(monitoring):
        return True
    if bus is None or not bus.client.is_connected:
        return False
    with contextlib.suppress(nats.errors.Error, TimeoutError, OSError):
        await bus.client.flush(timeout=ANSWER_S)
        return True
    return False


async def _answers(monitoring: str) -> bool:
    """Any answer to /healthz counts: one that is recovering its store says 503."""
    address = urlsplit(monitoring)
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(ANSWER_S):
            reader, writer = await asyncio.open_connection(address.hostname, address.port)
            try:
                writer.write(b"GET /healthz HTTP/1.0\r\n\r\n")
                return (await reader.read(5)).startswith(b"HTTP/")
            finally:
                writer.close()
    return False
