"""Opening the live database: tables, their version, and the steps from older versions."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import duckdb

from analytics.queries import create_views

_VERSION_2: Final = """\
ALTER TABLE attempts ADD COLUMN zone VARCHAR DEFAULT '';
ALTER TABLE attempts ADD COLUMN device VARCHAR DEFAULT '';
ALTER TABLE attempts ADD COLUMN fraction DOUBLE DEFAULT 1;
ALTER TABLE attempts ADD COLUMN fingerprint VARCHAR DEFAULT '';
ALTER TABLE attempts ADD COLUMN epoch BIGINT DEFAULT 0;
ALTER TABLE receipts ADD COLUMN sibling_of VARCHAR;
ALTER TABLE receipts ADD COLUMN choice INTEGER DEFAULT 0;
ALTER TABLE receipts ADD COLUMN key_id VARCHAR;
ALTER TABLE receipts ADD COLUMN resumed VARCHAR;
ALTER TABLE intervals ADD COLUMN fraction DOUBLE DEFAULT 1;
ALTER TABLE intervals ADD COLUMN fingerprint VARCHAR DEFAULT '';
"""
# Added columns: executor identity, the epoch that leased, several answers, keys, resumption.

VERSION: Final = 2
MIGRATIONS: Final[Mapping[int, str]] = {1: _VERSION_2}
"""SQL that brings version N to N + 1, by N. It runs before schema.sql, in one transaction."""

TABLES: Final = ("attempts", "receipts", "intervals")
_SCHEMA: Final = Path(__file__).with_name("schema.sql")
_CONFIG: Final[dict[str, str | bool | int | float | list[str]]] = {
    "threads": "1",  # executors need the cores more
    "memory_limit": "512MB",
    "autoinstall_known_extensions": "false",
}


class SchemaError(RuntimeError):
    """The database cannot be used by this version."""


def open_database(path: Path) -> duckdb.DuckDBPyConnection:
    """Open or create; brings an older schema up to date.

    Raises `SchemaError` for a newer schema or a damaged file, `duckdb.Error` when it is locked. The file
    of an error is left as it is.
    """
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    connection = _connect(path)
    try:
        prepare(connection, VERSION, MIGRATIONS)
    except BaseException:
        connection.close()
        raise
    return connection


def _connect(path: Path) -> duckdb.DuckDBPyConnection:
    try:
        return duckdb.connect(str(path), config=_CONFIG)
    except duckdb.Error as error:
        said = str(error).strip().partition("\n")[0]
        if not path.is_file() or "set lock" in said.lower() or "cannot open file" in said.lower():
            raise  # nothing is wrong with the bytes
        raise SchemaError(
            f"{path} cannot be read as a DuckDB database by DuckDB {duckdb.__version__} ({said}): "
            "move it away and metering starts a new one; the last snapshot beside it "
            "(snapshot.duckdb) may be intact, so copy that too before the next start replaces it"
        ) from error


def prepare(
    connection: duckdb.DuckDBPyConnection, version: int, migrations: Mapping[int, str]
) -> None:
    """Bring a database to `version`: migrations first, then tables and views; all or nothing."""
    connection.begin()
    try:
        found = stored_version(connection)
        if found is not None and found > version:
            raise SchemaError(
                f"usage.duckdb has schema {found}, this Headrace knows {version}: "
                "install the newer Headrace again, or move the file away"
            )
        for step in range(found or version, version):
            connection.execute(migrations[step])
        connection.execute(_SCHEMA.read_text())
        create_views(connection)
        connection.execute(
            "INSERT OR REPLACE INTO meta VALUES ('schema_version', $1)", [str(version)]
        )
        connection.commit()
    except BaseException:
        connection.rollback()
        raise


def stored_version(connection: duckdb.DuckDBPyConnection) -> int | None:
    """The schema version of the file; None for a new one."""
    known = connection.execute(
        "SELECT count(*) FROM duckdb_tables() "
        "WHERE table_name = 'meta' AND database_name = current_database()"
    ).fetchone()
    if known == (0,):
        return None
    row = connection.execute("SELECT value FROM meta WHERE key = 'schema_version'").fetchone()
    return None if row is None else int(row[0])


def insert_statement(connection: duckdb.DuckDBPyConnection, table: str) -> tuple[str, list[str]]:
    """The one statement that stores a batch, column by column, and the columns in its order."""
    found = connection.execute(
        "SELECT column_name, data_type FROM duckdb_columns() "
        "WHERE table_name = $1 AND database_name = current_database() ORDER BY column_index",
        [table],
    ).fetchall()
    columns = [name for name, _ in found]
    values = ", ".join(f"unnest(${i}::{kind}[])" for i, (_, kind) in enumerate(found, 1))
    statement = f"INSERT INTO {table} ({', '.join(columns)}) SELECT {values} ON CONFLICT DO NOTHING"
    return statement, columns
