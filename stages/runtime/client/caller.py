"""What both callers have in common."""

from types import TracebackType
from typing import Self


class Caller:
    """Closes itself at the end of `async with`."""

    async def close(self) -> None:
        """Disconnect."""
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        await self.close()
