"""Results as Parquet files."""

from pathlib import Path

import duckdb
import polars
import pytest

from analytics.export import export_parquet
from analytics.reader import QueryError, open_snapshot
from stages.metering.schema import open_database
from stages.metering.snapshot import Publisher
from stages.metering.writer import Writer
from tests.metering.support import message, receipt


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("usage")
    live = open_database(folder / "usage.duckdb")
    Writer(live).store(message(receipt(n, metadata={"team": "a"}), n) for n in range(5))
    Publisher(live, folder / "snapshot.duckdb").publish(1)
    live.close()
    return folder / "snapshot.duckdb"


def test_every_row_and_type_arrives(path: Path, tmp_path: Path) -> None:
    target = tmp_path / "out.parquet"
    with open_snapshot(path) as connection:
        assert export_parquet(connection, "FROM requests ORDER BY request_id;", target) == 5
        expected = connection.execute("SELECT finished_at FROM requests LIMIT 1").fetchall()
        assert export_parquet(connection, "SHOW TABLES", tmp_path / "tables.parquet") > 5
    frame = polars.read_parquet(target)
    assert frame["request_id"].to_list() == [f"r{number}" for number in range(5)]
    assert expected == [(frame["finished_at"][0],)]
    with duckdb.connect() as anybody:
        found = anybody.execute(f"SELECT metadata['team'], stages['ingress'] FROM '{target}'")
        assert found.fetchall() == [("a", 0.5)] * 5


def test_a_result_of_many_batches(path: Path, tmp_path: Path) -> None:
    target = tmp_path / "out.parquet"
    with open_snapshot(path) as connection:
        assert export_parquet(connection, "SELECT i FROM range(300000) t(i)", target) == 300_000
        assert export_parquet(connection, "SELECT 1 AS i WHERE false", target) == 0
    assert polars.read_parquet(target).shape == (0, 1)


@pytest.mark.parametrize(
    ("sql", "words"),
    [
        ("SELECT nonsense FROM requests", "nonsense"),
        ("COPY requests TO 'x'", "COPY is refused"),
        ("SELECT * FROM read_csv('/etc/passwd')", "disabled"),
        ("SELECT 1; SELECT 2", "exactly one statement"),
        ("SELECT 1 AS a, 2 AS a", "two columns are called 'a'"),
        ("SELECT [INTERVAL 1 DAY] AS a", "cast it to VARCHAR"),
        ("SELECT if(i < 250000, i, error('boom')) FROM range(300000) t(i)", "boom"),
    ],
)
def test_what_fails_leaves_nothing_and_harms_nothing(
    path: Path, tmp_path: Path, sql: str, words: str
) -> None:
    target = tmp_path / "out.parquet"
    target.write_text("mine")
    with open_snapshot(path) as connection, pytest.raises(QueryError, match=words):
        export_parquet(connection, sql, target)
    assert [file.name for file in tmp_path.iterdir()] == ["out.parquet"]
    assert target.read_text() == "mine"


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT count(*) FROM range(1000000000) a, range(1000000000) b",
        "SELECT 1 FROM range(1000000000) a(i), range(1000000000) b(j) WHERE i + j < 0",
    ],
)
def test_an_endless_export_is_interrupted(path: Path, tmp_path: Path, sql: str) -> None:
    target = tmp_path / "out.parquet"
    with (
        open_snapshot(path) as connection,
        pytest.raises(QueryError, match=r"interrupted after 0\.5 s"),
    ):
        export_parquet(connection, sql, target, time_limit_s=0.5)
    assert list(tmp_path.iterdir()) == []
