"""Waiting for something to become true, not for ever."""

import asyncio
import time
from collections.abc import Callable
from typing import Final

LIMIT_S: Final = 30.0  # generous: a loaded machine with two cores is slow


def until(condition: Callable[[], bool], limit_s: float = LIMIT_S) -> None:
    """Poll until it holds; raises `TimeoutError` after `limit_s`."""
    deadline = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {limit_s:.0f} s")
        time.sleep(0.01)


async def eventually(condition: Callable[[], bool], limit_s: float = LIMIT_S) -> None:
    """`until` beside other tasks of this loop."""
    async with asyncio.timeout(limit_s):
        while not condition():
            await asyncio.sleep(0.01)
