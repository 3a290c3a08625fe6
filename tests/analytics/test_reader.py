"""SQL of strangers on a snapshot."""

import threading
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest

from analytics.reader import NoDataError, QueryError, answer, open_snapshot
from stages.metering.events import Received
from stages.metering.schema import open_database
from stages.metering.snapshot import Publisher
from stages.metering.writer import Writer
from tests.metering.support import receipt


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("usage")
    live = open_database(folder / "usage.duckdb")
    events = [receipt(number).model_dump_json().encode() for number in range(5)]
    Writer(live).store(Received("hr.usage.receipt.small", raw, 0, 0.0) for raw in events)
    Publisher(live, folder / "snapshot.duckdb").publish(1)
    live.close()
    return folder / "snapshot.duckdb"


@pytest.fixture
def snapshot(path: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    with open_snapshot(path) as connection:
        yield connection


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT count(*) FROM requests",
        "FROM costs_by_tenant",
        "SHOW TABLES",
        "DESCRIBE requests",
        "SUMMARIZE receipts",
        "WITH a AS (SELECT 1) FROM a",
        "PIVOT requests ON tenant USING count(*)",
        "EXPLAIN SELECT 1",
        "SELECT stages['ingress'] FROM requests -- the ; in a comment",
        "SELECT ';';",
    ],
)
def test_reading_is_allowed(snapshot: duckdb.DuckDBPyConnection, sql: str) -> None:
    assert answer(snapshot, sql, 10).rows


@pytest.mark.parametrize(
    "sql",
    [
        "COPY requests TO '{tmp}/out.csv'",
        "COPY (SELECT 1) TO '{tmp}/out.parquet' (FORMAT parquet)",
        "EXPLAIN ANALYZE COPY (SELECT 1) TO '{tmp}/out.csv'",
        "EXPORT DATABASE '{tmp}/out'",
        "ATTACH '{tmp}/out.duckdb'",
        "ATTACH ':memory:' AS other",
        "SELECT * FROM read_csv('/etc/passwd')",
        "SELECT * FROM read_text('/etc/passwd')",
        "SELECT * FROM read_blob('/proc/self/environ')",
        "SELECT * FROM sniff_csv('/etc/passwd')",
        "SELECT * FROM glob('/etc/*')",
        "FROM '/etc/passwd'",
        "SELECT * FROM query('FROM read_text(''/etc/passwd'')')",
        "SELECT * FROM 'https://example.com/a.csv'",
        "SELECT getenv('HOME')",
        "SELECT * FROM path",
        "SET enable_external_access = true",
        "SET memory_limit = '100GB'",
        "RESET memory_limit",
        "SET VARIABLE a = 1",
        "INSTALL httpfs",
        "LOAD httpfs",
        "PRAGMA database_list",
        "PRAGMA memory_limit = '100GB'",
        "PRAGMA enable_profiling",
        "CALL pragma_version()",
        "CREATE TABLE t (a INT)",
        "CREATE TEMP TABLE t AS SELECT 1",
        "CREATE SECRET (TYPE s3)",
        "INSERT INTO receipts SELECT * FROM receipts",
        "UPDATE receipts SET tenant = 'x'",
        "DELETE FROM receipts",
        "DROP VIEW requests",
        "BEGIN",
        "CHECKPOINT",
        "DETACH snapshot",
        "USE memory",
        "PREPARE p AS SELECT 1",
        "SELECT 1; SELECT 2",
        "SELECT 1; COPY (SELECT 1) TO '{tmp}/out.csv'",
        "",
        "-- nothing",
    ],
)
def test_everything_else_is_refused(
    snapshot: duckdb.DuckDBPyConnection, path: Path, tmp_path: Path, sql: str
) -> None:
    with pytest.raises(QueryError) as refused:
        answer(snapshot, sql.format(tmp=tmp_path), 10)
    assert str(refused.value)
    assert list(tmp_path.iterdir()) == []
    assert sorted(file.name for file in path.parent.iterdir()) == [
        "snapshot.duckdb",
        "usage.duckdb",
    ]
    assert answer(snapshot, "SELECT count(*) FROM receipts", 1).rows == [(5,)]


def test_a_mistake_gets_one_clear_message(snapshot: duckdb.DuckDBPyConnection) -> None:
    with pytest.raises(QueryError, match="nonsense"):
        answer(snapshot, "SELECT nonsense FROM requests", 10)
    with pytest.raises(QueryError, match="syntax error"):
        answer(snapshot, "SELEC 1", 10)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT count(*) FROM range(1000000000) a, range(1000000000) b",
        "WITH RECURSIVE a AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM a) SELECT max(n) FROM a",
    ],
)
def test_an_endless_query_is_interrupted(path: Path, sql: str) -> None:
    before = threading.active_count()
    with open_snapshot(path) as connection:
        with pytest.raises(QueryError, match=r"interrupted after 0\.5 s"):
            answer(connection, sql, 10, time_limit_s=0.5)
        assert answer(connection, "SELECT 1", 1).rows == [(1,)]
    assert threading.active_count() == before


def test_memory_is_bounded(snapshot: duckdb.DuckDBPyConnection) -> None:
    with pytest.raises(QueryError, match=r"(?i)memory"):
        answer(snapshot, "SELECT count(*) FROM (SELECT DISTINCT i FROM range(200000000) t(i))", 1)


def test_rows_are_cut_and_said_to_be(snapshot: duckdb.DuckDBPyConnection) -> None:
    found = answer(snapshot, "SELECT i FROM range(11) t(i)", 10)
    assert (len(found.rows), found.cut) == (10, True)
    found = answer(snapshot, "SELECT i FROM range(10) t(i)", 10)
    assert (len(found.rows), found.cut) == (10, False)


def test_no_snapshot_and_a_broken_one(tmp_path: Path) -> None:
    with pytest.raises(NoDataError, match="no usage data yet"), open_snapshot(tmp_path / "none"):
        pass
    (tmp_path / "bad").write_bytes(b"not a database" * 1000)
    with pytest.raises(QueryError, match="cannot open"), open_snapshot(tmp_path / "bad"):
        pass
