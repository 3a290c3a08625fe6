"""Hard limits for one query, where the process belongs to it: DuckDB's own do not hold everywhere.

Its memory limit leaves out the heaps of strings, and `interrupt()` goes unseen inside one function.
"""

import contextlib
import os
import resource
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from analytics.reader import TOO_LARGE, QueryError

ADDRESS_BYTES: Final = 2_500_000_000
"""Address space beyond what is mapped already: 1 GB of DuckDB's, strings, threads and arenas."""

PATIENCE_S: Final = 5.0
"""How long a query may ignore its interruption."""


@contextlib.contextmanager
def bounded(
    time_limit_s: float, address_bytes: int = ADDRESS_BYTES, draft: Path | None = None
) -> Iterator[None]:
    """Limit this process's address space, and end it when the query outlives its interruption.

    Running out of memory becomes `QueryError`. The process ends with one line on standard error, exit
    code 1 and without `draft`, `PATIENCE_S` after the limit.
    """

    def end() -> None:
        if draft is not None:
            draft.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            os.write(
                sys.__stderr__.fileno() if sys.__stderr__ else 2,
                f"headrace: stopped after {time_limit_s:g} s; narrow the query\n".encode(),
            )
        os._exit(1)  # the thread of the query would never come back to raise

    watchdog = threading.Timer(time_limit_s + PATIENCE_S, end)
    watchdog.daemon = True
    watchdog.start()
    try:
        with _address_space(address_bytes):
            yield
    except MemoryError:
        raise QueryError(TOO_LARGE) from None
    finally:
        watchdog.cancel()


@contextlib.contextmanager
def _address_space(more_bytes: int) -> Iterator[None]:
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
    except OSError:  # not Linux: other systems do not enforce the limit
        yield
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    wanted = pages * resource.getpagesize() + more_bytes
    for known in (soft, hard):
        if known != resource.RLIM_INFINITY:
            wanted = min(wanted, known)
    resource.setrlimit(resource.RLIMIT_AS, (wanted, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
