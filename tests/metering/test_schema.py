"""Versions of the database file."""

import runpy
from pathlib import Path

import duckdb
import pytest

from stages.metering.schema import SchemaError, open_database, prepare, stored_version


def test_a_new_file_has_tables_views_and_a_version(tmp_path: Path) -> None:
    connection = open_database(tmp_path / "new" / "usage.duckdb")
    assert stored_version(connection) == 1
    names = {row[0] for row in connection.execute("SHOW TABLES").fetchall()}
    assert {"attempts", "receipts", "intervals", "rejected", "meta"} <= names
    assert {"requests", "executor_time", "costs_by_tenant", "bill", "reconciliation"} <= names
    connection.close()
    open_database(tmp_path / "new" / "usage.duckdb").close()


def test_migrations_run_in_order_and_once(tmp_path: Path) -> None:
    connection = open_database(tmp_path / "usage.duckdb")
    steps = {
        1: "ALTER TABLE receipts ADD COLUMN region VARCHAR",
        2: "UPDATE receipts SET region = 'here'",
    }
    prepare(connection, 3, steps)
    prepare(connection, 3, steps)
    assert stored_version(connection) == 3
    assert connection.execute("SELECT region FROM receipts").fetchall() == []
    connection.close()


def test_a_failed_migration_changes_nothing(tmp_path: Path) -> None:
    connection = open_database(tmp_path / "usage.duckdb")
    with pytest.raises(duckdb.Error):
        prepare(connection, 2, {1: "ALTER TABLE receipts ADD COLUMN a INT; SELECT nonsense"})
    assert stored_version(connection) == 1
    with pytest.raises(duckdb.Error):
        connection.execute("SELECT a FROM receipts")
    connection.close()


def test_a_newer_file_is_refused_with_advice(tmp_path: Path) -> None:
    connection = open_database(tmp_path / "usage.duckdb")
    connection.execute("UPDATE meta SET value = '9' WHERE key = 'schema_version'")
    connection.close()
    with pytest.raises(SchemaError, match=r"schema 9.*install the newer"):
        open_database(tmp_path / "usage.duckdb")


@pytest.mark.parametrize(
    "content", [b"", bytes(range(250)) * 20, b"\0" * 8 + b"DUCK" + b"\7" * 5000]
)
def test_a_damaged_file_gets_advice_and_stays_as_it_is(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "usage.duckdb"
    path.write_bytes(content)
    with pytest.raises(SchemaError, match="move it away") as caught:
        open_database(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert path.read_bytes() == content


def test_the_stage_says_it_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def main(*_: object) -> None:
        raise SchemaError("move it away")

    monkeypatch.setattr("stages.runtime.stage.main", main)
    with pytest.raises(SystemExit, match="headrace: move it away"):
        runpy.run_module("stages.metering", run_name="__main__")
