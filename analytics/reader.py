"""Reading a snapshot without trusting the SQL: no files, no settings, bounded memory and time."""

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import duckdb

MEMORY: Final = "1GB"
TIME_LIMIT_S: Final = 30.0
TOO_LARGE: Final = "the query needs more memory than it may use; narrow it (WHERE, LIMIT)"
_READS: Final = frozenset(
    {
        duckdb.StatementType.SELECT,  # also SHOW, DESCRIBE, SUMMARIZE, VALUES, FROM
        duckdb.StatementType.EXPLAIN,
        duckdb.StatementType.MULTI,  # PIVOT
    }
)
_CONFIG: Final[dict[str, str | bool | int | float | list[str]]] = {
    "enable_external_access": "false",
    "lock_configuration": "true",
    "memory_limit": MEMORY,
    "threads": "1",
    "temp_directory": "",  # nothing is written beside the snapshot
    "python_enable_replacements": "false",  # table names never reach into this process
}


class QueryError(ValueError):
    """The query cannot be answered; the message says why, for the person who wrote it."""


class NoDataError(LookupError):
    """There is no snapshot yet."""


@dataclass(frozen=True)
class Answer:
    """Rows of a query; `cut` if there were more."""

    columns: list[str]
    rows: list[tuple[Any, ...]]
    cut: bool


@contextlib.contextmanager
def open_snapshot(path: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    """A sandboxed read-only connection. Raises `NoDataError` or `QueryError` (not readable)."""
    if not path.exists():
        raise NoDataError(f"no usage data yet: {path} does not exist; `headrace up` makes it")
    try:
        connection = duckdb.connect(str(path), read_only=True, config=_CONFIG)
    except duckdb.Error as error:
        raise QueryError(f"cannot open {path}: {_first_line(error)}") from None
    try:
        yield connection
    finally:
        connection.close()


def answer(
    connection: duckdb.DuckDBPyConnection,
    sql: str,
    max_rows: int,
    time_limit_s: float = TIME_LIMIT_S,
) -> Answer:
    """Run one reading statement; raises `QueryError` with one clear message.

    At most `max_rows` rows are returned; a query longer than `time_limit_s` is interrupted.
    """
    with reading(connection, sql, time_limit_s) as statement:
        result = connection.execute(statement)
        columns = [column[0] for column in result.description]
        rows = result.fetchmany(max_rows + 1)
    return Answer(columns, rows[:max_rows], len(rows) > max_rows)


@contextlib.contextmanager
def reading(
    connection: duckdb.DuckDBPyConnection, sql: str, time_limit_s: float
) -> Iterator[duckdb.Statement]:
    """The one reading statement in `sql`, to be run inside; errors become `QueryError`."""
    try:
        statement = _only_read(duckdb.extract_statements(sql))
        with _interrupted_after(connection, time_limit_s) as interrupted:
            try:
                yield statement
            except (duckdb.Error, QueryError):
                if not interrupted.is_set():
                    raise
                raise QueryError(
                    f"interrupted after {time_limit_s:g} s; narrow the query (WHERE, LIMIT)"
                ) from None
    except duckdb.OutOfMemoryException:  # DuckDB would advise settings, which are locked
        raise QueryError(TOO_LARGE) from None
    except duckdb.Error as error:
        raise QueryError(str(error).strip()) from None


def _only_read(statements: list[duckdb.Statement]) -> duckdb.Statement:
    if len(statements) != 1:
        raise QueryError(f"write exactly one statement; this has {len(statements)}")
    if statements[0].type not in _READS:
        raise QueryError(
            f"{statements[0].type.name} is refused: the snapshot is for reading; "
            "write SELECT, FROM, WITH, DESCRIBE, SHOW TABLES or EXPLAIN"
        )
    return statements[0]


@contextlib.contextmanager
def _interrupted_after(
    connection: duckdb.DuckDBPyConnection, seconds: float
) -> Iterator[threading.Event]:
    interrupted = threading.Event()

    def interrupt() -> None:
        interrupted.set()
        connection.interrupt()

    timer = threading.Timer(seconds, interrupt)
    timer.daemon = True
    timer.start()
    try:
        yield interrupted
    finally:
        timer.cancel()
        timer.join()


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
