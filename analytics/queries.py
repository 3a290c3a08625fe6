"""Named SQL: the views that live inside the database, and queries with parameters."""

import functools
from pathlib import Path
from typing import Any, Final

import duckdb

SQL: Final = Path(__file__).with_name("sql")
VIEWS: Final = (  # each may use those before it
    "units",
    "closed_attempts",
    "attempt_costs",
    "lost_work",
    "requests",
    "executor_time",
    "costs_since",
    "bill_since",
)

Row = dict[str, Any]


def create_views(connection: duckdb.DuckDBPyConnection) -> None:
    """Create or replace every view and macro in the current database."""
    for name in VIEWS:
        connection.execute((SQL / "views" / f"{name}.sql").read_text())


@functools.cache
def text(name: str) -> str:
    """The SQL of a named query. Raises `FileNotFoundError` for an unknown name."""
    return (SQL / "queries" / f"{name}.sql").read_text()


def run(connection: duckdb.DuckDBPyConnection, name: str, **parameters: object) -> list[Row]:
    """The rows of a named query, as dictionaries. Raises `duckdb.Error`."""
    return rows(connection, text(name), parameters)


def rows(
    connection: duckdb.DuckDBPyConnection, sql: str, parameters: dict[str, object] | None = None
) -> list[Row]:
    """All rows of a query, as dictionaries. Raises `duckdb.Error`."""
    result = connection.execute(sql, parameters or {})
    columns = [column[0] for column in result.description]
    return [dict(zip(columns, row, strict=True)) for row in result.fetchall()]
