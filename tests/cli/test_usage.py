"""`headrace sql` and `headrace costs`, with and without a running pipeline."""

import asyncio
import csv
import io
import json
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import polars
import pytest
import typer
from click.testing import Result
from rich.console import Console
from typer.testing import CliRunner

from contracts.usage import UsageEvent
from stages.cli import rows, usage
from stages.cli.rows import money, plain
from stages.metering.schema import open_database
from stages.metering.service import MeteringService
from stages.metering.snapshot import Publisher
from stages.metering.writer import Writer
from stages.runtime.bus import Bus
from stages.runtime.clock import now_ms
from stages.runtime.launch import BusAddress, write_private
from tests.metering.support import (
    attempt,
    context,
    interval,
    make_stream,
    message,
    publish,
    receipt,
    traffic,
)

DOCS = Path(__file__).parents[2] / "docs" / "costs.md"

app = typer.Typer()
app.command("sql")(usage.sql)
app.command("costs")(usage.costs)


def headrace(*words: str, stdin: str | None = None) -> Result:
    return CliRunner().invoke(app, list(words), input=stdin)


def write_snapshot(state: Path, events: Iterable[UsageEvent]) -> None:
    """What metering leaves behind when the pipeline stops."""
    live = open_database(state / "metering" / "usage.duckdb")
    Writer(live).store(message(event, number) for number, event in enumerate(events))
    Publisher(live, state / "metering" / "snapshot.duckdb").publish(1)
    live.close()


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """A stopped pipeline that served two requests just now and one long ago."""
    now = now_ms() - 1000
    write_snapshot(
        tmp_path,
        [
            receipt(1, finished_ms=now, metadata={"team": "[bold]\x1b[31mred"}),
            attempt(1, finished_ms=now),
            receipt(2, finished_ms=now, tenant="other", attempt=0),
            receipt(3),
            attempt(3),
            interval(start_ms=now - 2000, end_ms=now),
        ],
    )
    return tmp_path


def test_json_rows_and_a_note_that_the_pipeline_is_down(state: Path) -> None:
    done = headrace("sql", "FROM requests ORDER BY request_id", "--state", str(state), "--json")
    assert done.exit_code == 0
    rows = json.loads(done.stdout)
    assert [row["request_id"] for row in rows] == ["r1", "r2", "r3"]
    assert rows[0]["metadata"] == {"team": "[bold]\x1b[31mred"}
    assert rows[2]["received_at"] == "2026-01-01T00:00:00"
    assert re.search(r"not running; this is the snapshot of \d{4}-\d\d-\d\d", done.stderr)


def test_a_table_shows_text_as_it_is_but_no_control_characters(state: Path) -> None:
    done = headrace("sql", "SELECT metadata['team'] AS team FROM requests", "--state", str(state))
    assert done.exit_code == 0
    assert "[bold]\\x1b[31mred" in done.stdout


def test_csv_and_a_query_from_a_file_or_standard_input(state: Path, tmp_path: Path) -> None:
    file = tmp_path / "q.sql"
    file.write_text("SELECT request_id, NULL AS nothing, stages FROM requests ORDER BY 1 LIMIT 1;")
    for words, stdin in (([str(file)], None), (["-"], file.read_text())):
        done = headrace("sql", "--file", *words, "--state", str(state), "--csv", stdin=stdin)
        assert list(csv.reader(io.StringIO(done.stdout))) == [
            ["request_id", "nothing", "stages"],
            ["r1", "", '{"ingress": 0.5, "queueing": 1.5}'],
        ]


def test_rows_are_cut_with_a_note(state: Path) -> None:
    words = ["sql", "SELECT i FROM range(9) t(i)", "--state", str(state), "--json"]
    done = headrace(*words, "--max-rows", "4")
    assert len(json.loads(done.stdout)) == 4
    assert "only the first 4 rows" in done.stderr
    assert "only the first" not in headrace(*words, "--max-rows", "9").stderr


def test_json_keeps_columns_of_one_name_apart_and_has_no_nan(state: Path) -> None:
    done = headrace("sql", "SELECT 1 AS a, 'nan'::FLOAT AS a", "--state", str(state), "--json")
    assert json.loads(done.stdout) == [{"a": 1, "a_2": None}]
    assert plain((float("inf"), {1: b"x"})) == [None, {"1": "b'x'"}]


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["sql", "SELECT nonsense FROM requests"], 1, "nonsense"),
        (["sql", "COPY requests TO '/tmp/x.csv'"], 1, "COPY is refused"),
        (["sql", "SELECT * FROM read_csv('/etc/passwd')"], 1, "disabled"),
        (["sql", ""], 1, "exactly one statement"),
        (["sql"], 2, "write the SQL as one argument"),
        (["sql", "SELECT 1", "--file", "q.sql"], 2, "write the SQL as one argument"),
        (["sql", "--file", "/does/not/exist.sql"], 2, "cannot read"),
        (["sql", "SELECT 1", "--json", "--csv"], 2, "choose one"),
        (["sql", "SELECT 1", "--json", "--parquet", "out.parquet"], 2, "choose one"),
        (["sql", "SELECT 1", "--parquet", "/does/not/exist/out.parquet"], 1, "cannot write"),
        (["sql", "SELECT nonsense", "--parquet", "out.parquet"], 1, "nonsense"),
        (["sql", "SELECT 1", "--max-rows", "0"], 2, "max-rows"),
        (["costs", "--json", "--csv"], 2, "choose one"),
        (["costs", "--since", "yesterday"], 2, "24h or 7d"),
        (["costs", "--by", "colour"], 2, "colour"),
    ],
)
def test_mistakes(state: Path, words: list[str], code: int, message: str) -> None:
    done = headrace(*words, "--state", str(state))
    assert done.exit_code == code
    assert message in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize("words", [["sql", "SELECT 1"], ["costs"]])
def test_no_data_yet(tmp_path: Path, words: list[str]) -> None:
    done = headrace(*words, "--state", str(tmp_path))
    assert done.exit_code == 3
    assert "no usage data yet" in done.stderr


def test_a_long_query_is_interrupted(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage, "TIME_LIMIT_S", 0.3)
    done = headrace(
        "sql",
        "SELECT count(*) FROM range(1000000000) a, range(1000000000) b",
        "--state",
        str(state),
    )
    assert done.exit_code == 1
    assert "interrupted after 0.3 s" in done.stderr


def test_a_parquet_file_has_all_rows_and_replaces_nothing_unasked(
    state: Path, tmp_path: Path
) -> None:
    file = tmp_path / "out.parquet"
    words = ["sql", "SELECT i FROM range(5000) t(i)", "--state", str(state)]
    words += ["--parquet", str(file)]
    done = headrace(*words)
    assert (done.exit_code, done.stdout) == (0, "")
    assert "5000 rows are in" in done.stderr
    assert polars.read_parquet(file)["i"].to_list() == list(range(5000))
    file.write_text("mine")
    refused = headrace(*words)
    assert (refused.exit_code, file.read_text()) == (2, "mine")
    assert "--force replaces it" in refused.stderr
    assert headrace(*words, "--force").exit_code == 0
    assert polars.read_parquet(file).height == 5000


def test_only_an_export_pays_for_importing_polars() -> None:
    code = "import stages.cli.usage, analytics.reader, sys; print('polars' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


@pytest.mark.parametrize("requests", [3, 300])
def test_costs_fit_a_terminal_of_80_columns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, requests: int
) -> None:
    write_snapshot(tmp_path, traffic(1, requests))
    for module in (rows, usage):
        monkeypatch.setattr(module, "console", lambda: Console(width=80))
    done = headrace("costs", "--state", str(tmp_path))
    assert done.exit_code == 0
    lines = done.stdout.splitlines()
    tenants = [line for line in lines if line.startswith(("ann", "bob", "eve"))]
    report = json.loads(headrace("costs", "--state", str(tmp_path), "--json").stdout)
    for line, row in zip(tenants, report["rows"], strict=True):
        assert money(row["amount"]) in line.split()
        assert money(row["per_1k_tokens"]) in line.split(), "on one line, whole"
    assert any(line.startswith("all pools") and "USD" in line for line in lines)


def test_cached_tokens_are_a_column_where_there_are_any(tmp_path: Path) -> None:
    for cached in (0, 20):
        folder = tmp_path / str(cached)
        write_snapshot(folder, [receipt(1, cached_tokens=cached), attempt(1)])
        table = headrace("costs", "--state", str(folder)).stdout
        assert ("cached" in table) == bool(cached)


def test_costs_as_table_json_and_csv(state: Path) -> None:
    table = headrace("costs", "--state", str(state))
    assert table.exit_code == 0
    assert "Requests by tenant, since the beginning" in table.stdout
    for word in ("demo", "other", "per 1k", "all pools", "45.0%", "5.0%", "50.0%", "USD"):
        assert word in table.stdout
    report = json.loads(headrace("costs", "--state", str(state), "--json").stdout)
    assert [(row["name"], row["requests"]) for row in report["rows"]] == [("demo", 2), ("other", 1)]
    assert report["bill"][-1]["pool"] is None
    assert report["bill"][-1]["idle_share"] == pytest.approx(0.5)
    lines = list(
        csv.DictReader(io.StringIO(headrace("costs", "--state", str(state), "--csv").stdout))
    )
    assert [line["name"] for line in lines] == ["demo", "other"]
    assert float(lines[0]["amount"]) == pytest.approx(2 * 0.9 * 0.08 / 3600)


def test_costs_of_a_window(state: Path) -> None:
    done = headrace("costs", "--by", "tenant", "--since", "1h", "--state", str(state), "--json")
    report = json.loads(done.stdout)
    assert {row["name"]: row["requests"] for row in report["rows"]} == {"demo": 1, "other": 1}
    by_hour = json.loads(headrace("costs", "--by", "hour", "--state", str(state), "--json").stdout)
    assert by_hour["rows"][0]["name"] == "2026-01-01 00:00"


async def test_while_the_pipeline_runs_the_answer_is_fresh(
    bus: Bus, bus_address: BusAddress, tmp_path: Path
) -> None:
    await make_stream(bus)
    write_private(tmp_path / "bus.json", bus_address.model_dump_json())
    metering = MeteringService(context(bus, bus_address, tmp_path))
    await metering.start()
    words = ("sql", "SELECT count(*) AS n FROM receipts", "--state", str(tmp_path), "--json")
    for number in range(1, 4):
        await publish(bus, receipt(number))
        done = await asyncio.to_thread(headrace, *words)
        assert (done.exit_code, json.loads(done.stdout), done.stderr) == (0, [{"n": number}], "")
    await metering.drain()
    done = await asyncio.to_thread(headrace, *words)
    assert json.loads(done.stdout) == [{"n": 3}]
    assert "metering did not answer" in done.stderr


def test_a_bus_that_is_gone_or_unreadable_is_no_obstacle(state: Path) -> None:
    gone = BusAddress(url="nats://127.0.0.1:1", user="a", password="b")
    for text, note in ((gone.model_dump_json(), "not running"), ("{", "cannot read")):
        (state / "bus.json").write_text(text)
        done = headrace("sql", "SELECT 1 AS a", "--state", str(state), "--json")
        assert (done.exit_code, json.loads(done.stdout)) == (0, [{"a": 1}])
        assert note in done.stderr


def examples(language: str) -> list[str]:
    found: list[str] = re.findall(rf"```{language}\n(.*?)```", DOCS.read_text(), re.DOTALL)
    return found


@pytest.mark.parametrize("sql", examples("sql"))
def test_every_documented_query_gives_rows(state: Path, sql: str) -> None:
    parts = {"busy_ms": 1400.0, "idle_ms": 0.0, "lost_ms": 500.0}
    write_snapshot(state, [interval(executor="small-1-dead", **parts)])
    done = headrace("sql", sql, "--state", str(state), "--json")
    assert done.exit_code == 0, done.stderr
    assert json.loads(done.stdout)


@pytest.mark.parametrize("line", "".join(examples("sh")).splitlines())
def test_every_documented_command_works(
    state: Path, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, *words = re.findall(r'"[^"]*"|\S+', line)
    assert program == "headrace"
    (state / "question.sql").write_text("FROM bill")
    monkeypatch.chdir(state)
    done = headrace(*(word.strip('"') for word in words), "--state", str(state))
    assert done.exit_code == 0, done.stderr


@pytest.mark.parametrize("code", examples("python"))
def test_the_documented_client_works(
    state: Path, code: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (state / ".headrace").symlink_to(state)
    monkeypatch.chdir(state)
    exec(compile(code, str(DOCS), "exec"), {})
    assert "demo" in capsys.readouterr().out
