"""When to stop waiting for a download that somebody else makes: not while bytes still arrive."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from stages.runtime.models.store import folder_size

STALL_S: Final = 600.0  # of a folder that does not grow; slow links are no reason to give up


class Patience:
    """Looks at a folder now and then; runs out when it has kept its size for `limit_s`."""

    def __init__(
        self,
        folder: Path,
        limit_s: float = STALL_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder, self._limit_s, self._clock = folder, limit_s, clock
        self._size, self._changed_at = folder_size(folder), clock()

    def is_over(self) -> bool:
        """Call it again and again; each call notes how large the folder is by now."""
        size = folder_size(self._folder)
        if size != self._size:
            self._size, self._changed_at = size, self._clock()
        return self._clock() - self._changed_at > self._limit_s
