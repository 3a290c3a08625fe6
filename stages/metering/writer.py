"""The only writer of the live database: a batch of events in one transaction."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import duckdb

from stages.metering.events import REJECTED, Received, Row, rejected, to_row
from stages.metering.schema import TABLES, insert_statement

# What one bad value raises; anything else (disk full, lock) concerns the whole batch.
_BAD_VALUE: Final = (
    duckdb.DataError,
    duckdb.IntegrityError,
    duckdb.InvalidInputException,
    OverflowError,
    ValueError,
)


@dataclass(frozen=True)
class Tally:
    """What became of a batch: `events` = `rows` + `duplicates` + `rejected`."""

    events: int = 0
    rows: int = 0
    duplicates: int = 0
    rejected: int = 0

    def __add__(self, other: "Tally") -> "Tally":
        return Tally(
            self.events + other.events,
            self.rows + other.rows,
            self.duplicates + other.duplicates,
            self.rejected + other.rejected,
        )


class Writer:
    """Stores batches. Used by one thread; `changes` counts transactions that added rows."""

    def __init__(self, connection: duckdb.DuckDBPyConnection) -> None:
        self._connection = connection
        self._inserts = {name: insert_statement(connection, name) for name in (*TABLES, REJECTED)}
        self.changes = 0

    def store(self, messages: Iterable[Received]) -> Tally:
        """Commit a batch; on return it is durable. Raises `duckdb.Error`: nothing is stored."""
        return self._store([to_row(message) for message in messages])

    def _store(self, rows: Sequence[Row]) -> Tally:
        """One transaction, or halves of it until the row that the database refuses stands alone."""
        try:
            return self._commit(rows)
        except _BAD_VALUE as error:
            if len(rows) == 1:
                if rows[0].table == REJECTED:
                    raise
                return self._commit([rejected(rows[0].source, f"{type(error).__name__}: {error}")])
        half = len(rows) // 2
        return self._store(rows[:half]) + self._store(rows[half:])

    def _commit(self, rows: Sequence[Row]) -> Tally:
        tables: dict[str, list[Row]] = {}
        for row in rows:
            tables.setdefault(row.table, []).append(row)
        self._connection.begin()
        try:
            added = {table: self._insert(table, part) for table, part in tables.items()}
            self._connection.commit()
        except BaseException:
            self._connection.rollback()
            raise
        set_aside = added.pop(REJECTED, 0)
        stored = sum(added.values())
        if stored or set_aside:
            self.changes += 1
        return Tally(len(rows), stored, len(rows) - stored - set_aside, set_aside)

    def _insert(self, table: str, rows: list[Row]) -> int:
        statement, names = self._inserts[table]
        columns: list[list[Any]] = [[row.values[name] for row in rows] for name in names]
        count = self._connection.execute(statement, columns).fetchone()
        assert count is not None
        return int(count[0])
