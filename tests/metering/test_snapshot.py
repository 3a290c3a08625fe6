"""Copies of the live database."""

from pathlib import Path

import duckdb
import pytest

from stages.metering.events import Received
from stages.metering.schema import open_database
from stages.metering.snapshot import Published, Publisher
from stages.metering.writer import Writer
from tests.metering.support import receipt


def store(writer: Writer, number: int) -> None:
    writer.store(
        [
            Received(
                "hr.usage.receipt.small", receipt(number).model_dump_json().encode(), number, 0.0
            )
        ]
    )


def test_a_snapshot_is_complete_and_old_readers_keep_theirs(tmp_path: Path) -> None:
    live = open_database(tmp_path / "usage.duckdb")
    writer, path = Writer(live), tmp_path / "snapshot.duckdb"
    publisher = Publisher(live, path)
    store(writer, 1)
    assert publisher.publish(writer.changes).rows == 1
    reader = duckdb.connect(str(path), read_only=True)
    assert reader.execute("SELECT count(*) FROM requests").fetchone() == (1,)
    store(writer, 2)
    published = publisher.publish(writer.changes)
    assert (published.rows, published.changes) == (2, 2)
    assert reader.execute("SELECT count(*) FROM requests").fetchone() == (1,)
    reader.close()
    with duckdb.connect(str(path), read_only=True) as later:
        assert later.execute("SELECT requests FROM costs_by_tenant").fetchall() == [(2,)]
        stamp = later.execute("SELECT value FROM meta WHERE key = 'published_ms'").fetchone()
    assert stamp == (f"{published.published_ms:.3f}",)
    assert sorted(file.name for file in tmp_path.iterdir()) == [
        "snapshot.duckdb",
        "usage.duckdb",
        "usage.duckdb.wal",
    ]
    live.close()


def test_what_a_killed_copy_left_is_replaced(tmp_path: Path) -> None:
    live = open_database(tmp_path / "usage.duckdb")
    (tmp_path / ".snapshot.duckdb.draft").write_bytes(b"half a file")
    (tmp_path / ".snapshot.duckdb.draft.wal").write_bytes(b"half a log")
    assert Publisher(live, tmp_path / "snapshot.duckdb").publish(0).rows == 0
    live.close()


def test_a_failed_copy_keeps_the_last_snapshot_and_the_writer(tmp_path: Path) -> None:
    live = open_database(tmp_path / "usage.duckdb")
    publisher = Publisher(live, tmp_path / "snapshot.duckdb")
    publisher.publish(0)
    before = (tmp_path / "snapshot.duckdb").read_bytes()
    live.execute("CREATE VIEW broken AS SELECT 1; DROP TABLE meta")  # makes the copy fail midway
    with pytest.raises(duckdb.Error):
        publisher.publish(1)
    assert (tmp_path / "snapshot.duckdb").read_bytes() == before
    store(Writer(live), 1)
    live.close()


def test_a_path_with_a_quote_is_no_trouble(tmp_path: Path) -> None:
    folder = tmp_path / "it's; here"
    live = open_database(folder / "usage.duckdb")
    assert Publisher(live, folder / "snapshot.duckdb").publish(0).rows == 0
    live.close()


@pytest.mark.parametrize(("copy_s", "pause_s"), [(0.001, 2.0), (0.05, 2.5), (0.5, 25.0)])
def test_copying_takes_less_than_a_fiftieth_of_the_time(copy_s: float, pause_s: float) -> None:
    assert Published(1, 0.0, 1, copy_s).pause_s == pytest.approx(pause_s)
