"""What the views say equals what polars computes from the events themselves."""

import json
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from typing import Any

import duckdb
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analytics import queries
from analytics.costs import Dimension, costs, parse_age, window
from analytics.queries import rows
from contracts.usage import UsageEvent
from stages.metering.events import Received
from stages.metering.schema import MIGRATIONS, VERSION, prepare
from stages.metering.writer import Writer
from tests.metering.support import HOUR_MS, START_MS, attempt, interval, price, receipt, traffic

DIMENSIONS: tuple[Dimension, ...] = ("tenant", "model", "pool", "hour")


def filled(events: Iterable[UsageEvent]) -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect()
    prepare(connection, VERSION, MIGRATIONS)
    Writer(connection).store(
        Received("hr.usage.x.y", event.model_dump_json().encode(), number, 0.0)
        for number, event in enumerate(events)
    )
    return connection


@pytest.fixture
def empty() -> Iterator[duckdb.DuckDBPyConnection]:
    connection = filled([])
    yield connection
    connection.close()


def frame(events: list[UsageEvent], kind: str) -> pl.DataFrame:
    """Events of a kind as a table, prices flattened, UTC hours added."""
    records = []
    for event in events:
        if event.kind == kind:
            record = json.loads(event.model_dump_json())
            record |= record.pop("price", {})
            records.append(record)
    return pl.DataFrame(records, infer_schema_length=None)


def expected_costs(events: list[UsageEvent], by: Dimension) -> dict[str, dict[str, float]]:
    """Tokens and amounts by name, computed apart from any SQL."""
    receipts, attempts = frame(events, "receipt"), frame(events, "attempt")
    if receipts.is_empty():
        return {}
    took: dict[str, list[float]] = {}
    for one in attempts.iter_rows(named=True):
        amount = one["accelerator_s"] * one["accelerator_hour"] / 3600
        fresh = min(one["prompt_tokens"] - one["cached_tokens"], one["computed_tokens"])
        part = fresh / one["computed_tokens"]
        if one["prefill_s"] is not None:
            part = one["prefill_s"] / one["accelerator_s"]
        sums = took.setdefault(one["request_id"], [0.0, 0.0, 0.0])
        for index, value in enumerate((one["accelerator_s"], amount, amount * part)):
            sums[index] += value
    none = [0.0, 0.0, 0.0]
    table = receipts.with_columns(
        pl.from_epoch(pl.col("finished_ms").cast(pl.Int64), time_unit="ms")
        .dt.strftime("%Y-%m-%d %H:00")
        .alias("hour"),
        *(
            pl.Series(name, [took.get(request, none)[index] for request in receipts["request_id"]])
            for index, name in enumerate(("accelerator_s", "amount", "prompt_amount"))
        ),
    )
    grouped = table.group_by(by).agg(
        pl.len().alias("requests"),
        pl.col("prompt_tokens", "cached_tokens", "completion_tokens").sum(),
        pl.col("accelerator_s", "amount", "prompt_amount").sum(),
    )
    return {row.pop(by): row for row in grouped.to_dicts()}


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**32), requests=st.integers(0, 60))
def test_costs_equal_an_independent_computation(seed: int, requests: int) -> None:
    events = list(traffic(seed, requests))
    with filled(events) as connection:
        for by in DIMENSIONS:
            expected = expected_costs(events, by)
            found = {row["name"]: row for row in costs(connection, by, None).rows}
            assert found.keys() == expected.keys()
            for name, want in expected.items():
                have = found[name]
                for column in ("requests", "prompt_tokens", "cached_tokens", "completion_tokens"):
                    assert have[column] == want[column]
                assert have["accelerator_s"] == pytest.approx(want["accelerator_s"])
                assert have["amount"] == pytest.approx(want["amount"])
                _check_per_1k(have, want)


def _check_per_1k(have: dict[str, Any], want: dict[str, float]) -> None:
    prompt, completion = want["prompt_tokens"], want["completion_tokens"]
    for column, amount, tokens in (
        ("per_1k_prompt", want["prompt_amount"], prompt),
        ("per_1k_completion", want["amount"] - want["prompt_amount"], completion),
        ("per_1k_tokens", want["amount"], prompt + completion),
    ):
        if tokens:
            assert have[column] == pytest.approx(1000 * amount / tokens, abs=1e-12)
        else:
            assert have[column] is None


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**32), requests=st.integers(1, 60))
def test_the_bill_adds_up(seed: int, requests: int) -> None:
    events = list(traffic(seed, requests))
    done = {event.request_id for event in events if event.kind == "receipt"}
    spans = frame(events, "interval")
    whole = float(
        spans.select(
            ((pl.col("end_ms") - pl.col("start_ms")) * pl.col("accelerator_hour")).sum() / HOUR_MS
        ).item()
    )
    paid = {True: 0.0, False: 0.0}
    for event in events:
        if event.kind == "attempt":
            amount = event.accelerator_s * event.price.accelerator_hour / 3600
            paid[event.request_id in done] += amount
    with filled(events) as connection:
        (bill,) = rows(connection, "FROM bill")
        pools = rows(connection, "FROM bill_by_pool")
        checks = rows(connection, "FROM reconciliation")
        (time,) = rows(connection, "SELECT sum(amount) AS amount FROM executor_time")
    assert bill["amount"] == pytest.approx(whole)
    assert time["amount"] == pytest.approx(whole)
    assert bill["requests"] == len(done)
    assert bill["requests_amount"] == pytest.approx(paid[True])
    assert bill["unreceipted_amount"] == pytest.approx(paid[False])
    assert bill["unattributed_amount"] == pytest.approx(0, abs=1e-9), "busy = all attempts"
    parts = bill["busy_amount"] + bill["overhead_amount"] + bill["idle_amount"]
    assert parts == pytest.approx(whole)
    assert sum(pool["amount"] for pool in pools) == pytest.approx(whole)
    for check in checks:
        assert check["explained"] == pytest.approx(check["bill"])
        assert check["difference"] == pytest.approx(0, abs=1e-9)
        assert check["untiled_s"] == pytest.approx(0, abs=1e-4)


def test_every_view_answers_without_data(empty: duckdb.DuckDBPyConnection) -> None:
    views = empty.execute("SELECT view_name FROM duckdb_views() WHERE NOT internal").fetchall()
    assert {"requests", "attempt_costs", "executor_time", "reconciliation", "bill"} <= {
        name for (name,) in views
    }
    for (name,) in views:
        assert empty.execute(f"FROM {name}").fetchall() == []
    assert costs(empty, "hour", None).rows == []
    assert costs(empty, "hour", None).bill == []


def test_a_request_row_tells_the_whole_story() -> None:
    events = [
        attempt(1, attempt=1, executor="small-0-dead", finish="error", accelerator_s=0.1),
        attempt(1, attempt=2, executor="small-1-bbbb", accelerator_s=0.9, prefill_s=0.3),
        receipt(1, attempt=2, metadata={"team": "search"}),
        receipt(2, attempt=0, finish_reason="timeout", completion_tokens=0, queue_ms=None),
        interval(),
    ]
    with filled(events) as connection:
        row, never = queries.rows(connection, "FROM requests ORDER BY request_id")
    assert row["executor"] == "small-1-bbbb"
    assert row["attempts"] == 2
    assert row["accelerator_s"] == pytest.approx(1.0)
    assert row["amount"] == pytest.approx(0.08 / 3600)
    assert row["prompt_amount"] == pytest.approx((0.1 * 80 / 130 + 0.3) * 0.08 / 3600)
    assert row["prompt_amount"] + row["completion_amount"] == pytest.approx(row["amount"])
    assert row["computed_tokens"] == 260
    assert (row["queue_ms"], row["ttft_ms"], row["tpot_ms"], row["e2e_ms"]) == (1.5, 20, 5, 270)
    assert row["received_at"] == datetime(2026, 1, 1)
    assert row["stages"] == {"ingress": 0.5, "queueing": 1.5}
    assert row["metadata"] == {"team": "search"}
    assert (never["attempts"], never["amount"], never["executor"]) == (0, 0, None)
    assert never["currency"] == "USD", "a free request belongs to the row of its tenant"


def test_running_and_unreceipted_work_is_named_in_the_bill() -> None:
    events = [interval(0), interval(1), attempt(1, accelerator_s=0.9)]  # busy 1.8 s in all
    with filled(events) as connection:
        (row,) = rows(connection, "FROM bill")
    second = 0.08 / 3600
    assert row["requests_amount"] == 0
    assert row["unreceipted_amount"] == pytest.approx(0.9 * second)
    assert row["unattributed_amount"] == pytest.approx(0.9 * second)
    assert row["idle_share"] == pytest.approx(0.5)
    assert row["overhead_share"] == pytest.approx(0.05)


def killed(*attempts: UsageEvent, report_s: float = 0.7) -> list[UsageEvent]:
    """An executor that was killed 0.5 s after its last interval (0.9 s busy) and what it ran."""
    end = START_MS + 2000
    lost = interval(1, start_ms=end, end_ms=end + 500, busy_ms=0, host_ms=0, idle_ms=0, lost_ms=500)
    reported = attempt(1, finish="lost", accelerator_s=report_s, completion_tokens=20)
    return [interval(0), lost, reported, *attempts]


@pytest.mark.parametrize("report_s", [0.7, 0.9, 1.1])  # older than the interval, same age, newer
def test_a_killed_executor_adds_up_with_what_its_last_report_said(report_s: float) -> None:
    again = attempt(1, attempt=2, executor="small-1-bbbb", accelerator_s=0.4)
    other = interval(
        0, executor="small-1-bbbb", end_ms=START_MS + 400, busy_ms=400, host_ms=0, idle_ms=0
    )
    with filled([*killed(again, receipt(1, attempt=2), report_s=report_s), other]) as connection:
        (check,) = rows(connection, "FROM reconciliation")
        (bill,) = rows(connection, "FROM bill")
        (request,) = rows(connection, "FROM requests")
        (dead,) = rows(connection, "FROM executor_time WHERE executor = 'small-0-aaaa'")
    second = 0.08 / 3600
    assert (request["attempts"], request["lost_attempts"]) == (2, 1)
    assert request["accelerator_s"] == pytest.approx(report_s + 0.4)
    assert check["requests_amount"] == pytest.approx((report_s + 0.4) * second)
    assert check["difference"] == pytest.approx(0, abs=1e-12)
    assert bill["unattributed_amount"] == pytest.approx(0, abs=1e-12)
    assert bill["lost_s"] == pytest.approx(0.5 + 0.9 - report_s)
    assert (dead["busy_s"], dead["lost_s"]) == pytest.approx((report_s, 0.5 + 0.9 - report_s))
    assert dead["untiled_s"] == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("final_first", [True, False])
def test_a_final_replaces_the_lost_attempt_and_nothing_counts_twice(final_first: bool) -> None:
    final = attempt(1, accelerator_s=0.9, completion_tokens=50)
    events = killed(final, receipt(1))
    with filled(events[::-1] if final_first else events) as connection:
        (one,) = rows(connection, "FROM closed_attempts")
        (request,) = rows(connection, "FROM requests")
        (check,) = rows(connection, "FROM reconciliation")
        assert rows(connection, "SELECT count(*) AS n FROM attempts") == [{"n": 2}]
    assert (one["finish"], one["completion_tokens"]) == ("stop", 50)
    assert (request["attempts"], request["lost_attempts"]) == (1, 0)
    assert request["sampled_tokens"] == 50
    assert request["accelerator_s"] == pytest.approx(0.9)
    assert check["difference"] == pytest.approx(0, abs=1e-12)


def test_n_answers_bill_their_prompt_once() -> None:
    answers = [
        receipt(n, sibling_of="r1", choice=n - 1, prompt_tokens=100 if n == 1 else 0)
        for n in (1, 2, 3)
    ]
    with filled(answers) as connection:
        (row,) = costs(connection, "tenant", None).rows
        choices = rows(connection, "SELECT choice, sibling_of FROM requests ORDER BY choice")
    assert (row["requests"], row["prompt_tokens"], row["completion_tokens"]) == (3, 100, 150)
    assert [each["choice"] for each in choices] == [0, 1, 2]


def test_last_digits_of_sums_are_no_lost_work() -> None:
    parts = (0.1, 0.2, 0.4)  # summed in seconds and in milliseconds they differ at the 16th digit
    events: list[UsageEvent] = [
        *(attempt(number, accelerator_s=part) for number, part in enumerate(parts)),
        interval(0, busy_ms=700.0 + 1e-7, host_ms=0, idle_ms=1300),
        interval(1, busy_ms=0, host_ms=0, idle_ms=1500, lost_ms=500),
    ]
    connection = filled(events)
    [(seconds, amount)] = connection.sql("SELECT seconds, amount FROM lost_work").fetchall()
    assert (seconds, amount) == (0, 0)
    connection.close()


def test_executor_time_shows_gaps_and_bad_tiling() -> None:
    late = interval(2, start_ms=START_MS + 5000, end_ms=START_MS + 6500)  # 3 s late, 0.5 s untiled
    with filled([interval(0), late]) as connection:
        (row,) = rows(connection, "FROM executor_time")
    assert (row["total_s"], row["busy_s"], row["idle_s"]) == (3.5, 1.8, 2.0)
    assert row["gap_s"] == pytest.approx(3.0)
    assert row["untiled_s"] == pytest.approx(0.5)
    assert row["started_at"] == datetime(2026, 1, 1)


def test_a_window_leaves_out_what_ended_before_it() -> None:
    events: list[UsageEvent] = []
    for number in range(4):
        end = START_MS + number * HOUR_MS
        events += [
            receipt(number, finished_ms=end),
            attempt(number, finished_ms=end),
            interval(start_ms=end - 900, end_ms=end, busy_ms=900.0, host_ms=0.0, idle_ms=0.0),
        ]
    since = datetime(2026, 1, 1, 1, 30)
    with filled(events) as connection:
        report = costs(connection, "hour", since)
    assert [row["name"] for row in report.rows] == ["2026-01-01 02:00", "2026-01-01 03:00"]
    (total,) = report.totals
    assert (total["requests"], total["busy_s"]) == (2, pytest.approx(1.8))
    assert total["unattributed_amount"] == pytest.approx(0, abs=1e-12)


def test_currencies_are_never_added_up() -> None:
    euro = price("small").model_copy(update={"currency": "EUR"})
    events = [receipt(1), attempt(1), receipt(2), attempt(2, price=euro), interval()]
    with filled(events) as connection:
        found = costs(connection, "tenant", None)
    assert sorted((row["currency"], row["requests"]) for row in found.rows) == [
        ("EUR", 1),
        ("USD", 1),
    ]
    assert {row["currency"] for row in found.totals} == {"EUR", "USD"}


def test_an_unknown_dimension_says_what_to_write() -> None:
    with (
        filled([receipt()]) as connection,
        pytest.raises(duckdb.Error, match="tenant, model, pool"),
    ):
        connection.execute("FROM costs_since('colour', TIMESTAMP '-infinity')").fetchall()


def test_ages() -> None:
    assert parse_age("24h") == timedelta(days=1)
    assert parse_age(" 90s ") == timedelta(seconds=90)
    assert window(parse_age("7d"), datetime(2026, 1, 8)) == datetime(2026, 1, 1)
    for text in ("", "24", "h", "-1h", "1w", "1.5h", "9999999d"):
        with pytest.raises(ValueError, match="write for example"):
            parse_age(text)


def test_an_unknown_named_query_is_refused() -> None:
    with pytest.raises(FileNotFoundError):
        queries.text("nothing")
