"""The whole result of a query as a Parquet file. Imports polars, so only `--parquet` imports this."""

from pathlib import Path
from typing import Final

import duckdb
import polars
from polars.exceptions import PolarsError

from analytics.reader import TIME_LIMIT_S, QueryError, reading

_NOT_TAKEN: Final = ("INTERVAL", "UNION(")  # types that polars cannot take from DuckDB


def export_parquet(
    connection: duckdb.DuckDBPyConnection,
    sql: str,
    path: Path,
    time_limit_s: float = TIME_LIMIT_S,
) -> int:
    """Run one reading statement and stream all its rows into `path`; returns how many there are.

    The connection reaches no files, so polars writes. The file appears complete or not at all; one that
    is there is replaced. Raises `QueryError`, or `OSError` when `path` cannot be written.
    """
    draft = draft_of(path)
    try:
        with reading(connection, sql, time_limit_s), draft.open("wb") as file:
            try:
                result = connection.sql(sql)
                _check_columns(result)
                polars.scan_arrow_c_stream(result).sink_parquet(file)
            except PolarsError as error:  # what DuckDB said, in polars' words
                raise QueryError(str(error).strip()) from None
        rows = int(polars.scan_parquet(draft).select(polars.len()).collect().item())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
    return rows


def draft_of(path: Path) -> Path:
    """Where the rows are written until all are there."""
    return path.with_name(f".{path.name}.draft")


def _check_columns(result: duckdb.DuckDBPyRelation) -> None:
    for index, (name, kind) in enumerate(zip(result.columns, result.types, strict=True)):
        if name in result.columns[:index]:
            raise QueryError(f"two columns are called {name!r}; rename one with AS")
        if any(word in str(kind) for word in _NOT_TAKEN):
            raise QueryError(f"column {name!r} is {kind}, unknown to Parquet; cast it to VARCHAR")
