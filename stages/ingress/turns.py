"""How much of one tenant is worked on at once, so that its flood makes nobody else wait."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

from contracts.errors import ErrorCode, HeadraceError

AT_ONCE: Final = 64  # calls; more of a tenant wait in its own line
MOST_CALLS: Final = 4096
MOST_BYTES: Final = 64 << 20
RETRY_S: Final = 1.0


@dataclass
class _Line:
    """Calls of one tenant: those in work and those that wait."""

    calls: int = 0
    bytes: int = 0
    turn: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(AT_ONCE))


class Turns:
    """One line a tenant, first come, first served."""

    def __init__(self) -> None:
        self._lines: dict[str, _Line] = {}

    @asynccontextmanager
    async def of(self, tenant: str, size: int) -> AsyncIterator[None]:
        """A tenant's turn for a call of `size` bytes. Raises saturated where its line is full."""
        line = self._lines.setdefault(tenant, _Line())
        if line.calls >= MOST_CALLS or (line.calls and line.bytes + size > MOST_BYTES):
            raise HeadraceError(
                ErrorCode.SATURATED,
                f"{line.calls} calls of tenant {tenant!r} with {line.bytes} bytes are not answered yet "
                f"here, at most {MOST_CALLS} calls and {MOST_BYTES} bytes may be; "
                f"call again in {RETRY_S:g} s",
                retry_after_s=RETRY_S,
            )
        line.calls += 1
        line.bytes += size
        try:
            async with line.turn:
                yield
        finally:
            line.calls -= 1
            line.bytes -= size
            if not line.calls:
                del self._lines[tenant]
