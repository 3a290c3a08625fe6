"""Batches into tables: exactly once, and one bad event never stops the others."""

import json
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest

from contracts.usage import AttemptEvent, IntervalEvent, ReceiptEvent, UsageEvent
from stages.metering.events import Received
from stages.metering.schema import open_database
from stages.metering.writer import Tally, Writer
from tests.metering.support import attempt, interval, receipt


@pytest.fixture
def database(tmp_path: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    connection = open_database(tmp_path / "metering" / "usage.duckdb")
    yield connection
    connection.close()


def message(data: UsageEvent | bytes, sequence: int = 1) -> Received:
    raw = data if isinstance(data, bytes) else data.model_dump_json().encode()
    return Received("hr.usage.x.small", raw, sequence, 1000.0 + sequence)


def changed(event: UsageEvent, **fields: object) -> bytes:
    return json.dumps(json.loads(event.model_dump_json()) | fields).encode()


def test_each_kind_has_its_table_with_every_field(database: duckdb.DuckDBPyConnection) -> None:
    tally = Writer(database).store([message(event) for event in (attempt(), receipt(), interval())])
    assert tally == Tally(events=3, rows=3)
    for table, model in (
        ("attempts", AttemptEvent),
        ("receipts", ReceiptEvent),
        ("intervals", IntervalEvent),
    ):
        columns = {row[0] for row in database.execute(f"DESCRIBE {table}").fetchall()}
        flat = set(model.model_fields) - {"kind", "price"} | {"key"}
        price = {"accelerator_hour", "currency"} if "price" in model.model_fields else set()
        assert columns == flat | price


def test_a_receipt_comes_back_as_it_was(database: duckdb.DuckDBPyConnection) -> None:
    event = receipt(7, metadata={"team": "search"}, tpot_ms=None, error_code=None)
    Writer(database).store([message(event)])
    result = database.execute("FROM receipts")
    names = [column[0] for column in result.description]
    row = result.fetchone()
    assert row is not None
    stored = dict(zip(names, row, strict=True))
    assert stored.pop("key") == event.key == "r7:receipt"
    assert ReceiptEvent.model_validate(stored) == event


def test_repeats_within_and_across_batches_change_nothing(
    database: duckdb.DuckDBPyConnection,
) -> None:
    writer = Writer(database)
    first = writer.store([message(receipt(1)), message(receipt(1)), message(receipt(2))])
    assert first == Tally(events=3, rows=2, duplicates=1)
    second = writer.store([message(receipt(2)), message(attempt(2))])
    assert second == Tally(events=2, rows=1, duplicates=1)
    assert database.execute("SELECT count(*) FROM receipts").fetchone() == (2,)
    changes = writer.changes
    writer.store([message(receipt(2))])
    assert writer.changes == changes


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"not json", "Invalid JSON"),
        (b"\xff\xfe\x00", "Invalid JSON"),
        (b"", "Invalid JSON"),
        (b'{"kind":"other"}', "kind"),
        (b"[1]", "event"),
        (changed(receipt(), prompt_tokens="many"), "receipt.prompt_tokens"),
        (changed(attempt(), accelerator_s=None), "attempt.accelerator_s"),
        (changed(attempt(), accelerator_s=float("nan")), "accelerator_s: not a finite"),
        (changed(receipt(), stages={"a": float("inf")}), "stages: not a finite"),
        (changed(receipt(), prompt_tokens=10**30), "prompt_tokens|Exception|Error"),
        (changed(receipt(), prompt_tokens=10**19), "Exception|Error"),
        (changed(receipt(), attempt=2**40), "Exception|Error"),
    ],
)
def test_a_malformed_event_is_set_aside_and_blocks_nothing(
    database: duckdb.DuckDBPyConnection, data: bytes, reason: str
) -> None:
    writer = Writer(database)
    batch = [message(receipt(n), n) for n in range(1, 10)]
    batch.insert(4, message(data, 50))
    assert writer.store(batch) == Tally(events=10, rows=9, rejected=1)
    assert writer.store(batch) == Tally(events=10, duplicates=10)
    row = database.execute("SELECT raw, reason, subject, stored_ms FROM rejected").fetchone()
    assert row is not None
    assert row[0] == data.decode(errors="backslashreplace").replace("\x00", "\\x00")
    assert any(part in row[1] for part in reason.split("|"))
    assert row[2:] == ("hr.usage.x.small", 1050.0)


def test_text_that_looks_dangerous_is_only_text(database: duckdb.DuckDBPyConnection) -> None:
    tenant = "'); DROP TABLE receipts; -- \u0000\U0001f600"
    Writer(database).store([message(receipt(1, tenant=tenant, metadata={tenant: tenant}))])
    row = database.execute("SELECT tenant, metadata FROM receipts").fetchone()
    assert row == (tenant, {tenant: tenant})
