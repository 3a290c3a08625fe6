"""Versions of the database file."""

import runpy
from pathlib import Path

import duckdb
import pytest

from stages.metering.schema import VERSION, SchemaError, open_database, prepare, stored_version
from stages.metering.writer import Writer
from tests.metering.support import attempt, message, receipt

V1 = Path(__file__).with_name("schema_v1.sql")


def test_a_new_file_has_tables_views_and_a_version(tmp_path: Path) -> None:
    connection = open_database(tmp_path / "new" / "usage.duckdb")
    assert stored_version(connection) == VERSION
    names = {row[0] for row in connection.execute("SHOW TABLES").fetchall()}
    assert {"attempts", "receipts", "intervals", "rejected", "meta"} <= names
    assert {"requests", "executor_time", "costs_by_tenant", "bill", "reconciliation"} <= names
    connection.close()
    open_database(tmp_path / "new" / "usage.duckdb").close()


def test_migrations_run_in_order_and_once(tmp_path: Path) -> None:
    connection = open_database(tmp_path / "usage.duckdb")
    steps = {
        VERSION: "ALTER TABLE receipts ADD COLUMN region VARCHAR",
        VERSION + 1: "UPDATE receipts SET region = 'here'",
    }
    prepare(connection, VERSION + 2, steps)
    prepare(connection, VERSION + 2, steps)
    assert stored_version(connection) == VERSION + 2
    assert connection.execute("SELECT region FROM receipts").fetchall() == []
    connection.close()


def test_a_file_of_the_first_version_keeps_its_rows_and_takes_new_events(tmp_path: Path) -> None:
    path = tmp_path / "usage.duckdb"
    with duckdb.connect(str(path)) as old:
        old.execute(V1.read_text())
        old.execute("INSERT INTO meta VALUES ('schema_version', '1')")
        old.execute(
            "INSERT INTO attempts VALUES ('r1:1:final', 'r1', 1, 'demo', 'small', 'smollm', 'small-0', 1, "
            "'stop', 100, 0, 150, 50, 0.9, NULL, 0, 900, 0.08, 'USD')"
        )
    connection = open_database(path)
    assert stored_version(connection) == VERSION
    tally = Writer(connection).store([message(receipt(1)), message(attempt(2, zone="b", epoch=7))])
    assert tally.rows == 2
    rows = connection.execute(
        "SELECT key, zone, fraction, epoch FROM attempts ORDER BY key"
    ).fetchall()
    assert rows == [("r1:1:final", "", 1.0, 0), ("r2:1:final", "b", 1.0, 7)]
    assert connection.execute("SELECT attempts, choice FROM requests").fetchall() == [(1, 0)]
    connection.close()
    new = open_database(tmp_path / "new.duckdb")
    columns = "SELECT table_name, column_name, data_type FROM duckdb_columns() ORDER BY ALL"
    with duckdb.connect(str(path)) as migrated:
        assert migrated.execute(columns).fetchall() == new.execute(columns).fetchall()
    new.close()


def test_a_failed_migration_changes_nothing(tmp_path: Path) -> None:
    connection = open_database(tmp_path / "usage.duckdb")
    broken = "ALTER TABLE receipts ADD COLUMN a INT; SELECT nonsense"
    with pytest.raises(duckdb.Error):
        prepare(connection, VERSION + 1, {VERSION: broken})
    assert stored_version(connection) == VERSION
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
