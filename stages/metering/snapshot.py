"""A copy of the live database that any DuckDB client can open while metering runs."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import duckdb

from stages.runtime.clock import now_ms

LEAST_PAUSE_S: Final = 2.0
COPY_SHARE: Final = 50.0  # a pause of 50 copies: less than 2 % of the time goes into copying

_ROWS: Final = """
    SELECT (SELECT count(*) FROM attempts)
        + (SELECT count(*) FROM receipts)
        + (SELECT count(*) FROM intervals)
"""


@dataclass(frozen=True)
class Published:
    """A snapshot that is in place. `changes`: the writer's count it holds."""

    rows: int
    published_ms: float
    changes: int
    copy_s: float

    @property
    def pause_s(self) -> float:
        """How long to wait before the next copy."""
        return max(LEAST_PAUSE_S, COPY_SHARE * self.copy_s)


class Publisher:
    """Copies the database beside `path` and renames the copy: readers keep the file they opened.

    Used by the writer's thread, so a copy never sees half a batch.
    """

    def __init__(
        self,
        connection: duckdb.DuckDBPyConnection,
        path: Path,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._connection = connection
        self._path = path
        self._draft = path.with_name(f".{path.name}.draft")
        self._clock = clock

    def publish(self, changes: int) -> Published:
        """Raises `duckdb.Error` or `OSError` (disk full): the last snapshot stays."""
        started = self._clock()
        self._remove_draft()
        published_ms = now_ms()
        self._connection.execute(f"ATTACH '{_quoted(self._draft)}' AS draft")
        try:
            rows = self._copy(published_ms)
        finally:
            self._connection.execute("DETACH draft")
        self._draft.replace(self._path)
        return Published(rows, published_ms, changes, self._clock() - started)

    def _copy(self, published_ms: float) -> int:
        live = self._connection.execute("SELECT current_database()").fetchone()
        assert live is not None
        self._connection.execute(f'COPY FROM DATABASE "{live[0]}" TO draft')
        self._connection.execute(
            "INSERT OR REPLACE INTO draft.meta VALUES ('published_ms', $1)", [f"{published_ms:.3f}"]
        )
        self._connection.execute("CHECKPOINT draft")  # nothing stays in a log beside the file
        rows = self._connection.execute(_ROWS).fetchone()
        assert rows is not None
        return int(rows[0])

    def _remove_draft(self) -> None:
        for path in (self._draft, self._draft.with_name(f"{self._draft.name}.wal")):
            path.unlink(missing_ok=True)


def _quoted(path: Path) -> str:
    return str(path).replace("'", "''")
