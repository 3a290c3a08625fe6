"""Background work that must outlive its failures: a loop that logs and goes on."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

log = logging.getLogger("headrace.loops")


async def forever(name: str, step: Callable[[], Awaitable[object]], pause_s: float) -> None:
    """Await `step` again and again with `pause_s` seconds between, until cancelled.

    Never raises what `step` raises: a task that ends unseen would leave a process that lives but no
    longer does its work. A failure is logged with its traceback the first, second, fourth, eighth
    … time in a row, so that a lasting one does not fill the log; the next success is logged too.
    """
    failures = 0
    while True:
        try:
            await step()
        except Exception:
            failures += 1
            if failures & (failures - 1) == 0:
                log.exception("%s failed (%d in a row); goes on", name, failures)
        else:
            if failures:
                log.warning("%s works again after %d failures", name, failures)
            failures = 0
        await asyncio.sleep(pause_s)
