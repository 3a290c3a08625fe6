"""`headrace sql` and `headrace costs`: what metering knows, while the pipeline runs or after."""

import asyncio
import socket
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final
from urllib.parse import urlsplit

import duckdb
import nats.errors
import typer
from pydantic import ValidationError

from analytics.costs import Costs, parse_age, window
from analytics.costs import costs as read_costs
from analytics.guard import bounded
from analytics.queries import Row
from analytics.reader import TIME_LIMIT_S, NoDataError, QueryError, answer, open_snapshot
from contracts import subjects
from contracts.errors import HeadraceError
from contracts.internal import SnapshotCall, SnapshotReply
from stages.cli.common import (
    FAILED,
    MISUSED,
    NO_DATA,
    STATE,
    JsonOption,
    StateOption,
    fail,
    print_json,
)
from stages.cli.rows import console, money, objects, plain, print_csv, print_table
from stages.runtime.bus import Bus
from stages.runtime.launch import BusAddress

WIDE_ENOUGH: Final = 104  # columns; on a narrower terminal the costs show less
ASK_S: Final = 6.0
CONNECT_S: Final = 2.0

Csv = Annotated[bool, typer.Option("--csv", help="Print CSV, for spreadsheets.")]


class By(StrEnum):
    """What costs are grouped by."""

    TENANT = "tenant"
    MODEL = "model"
    POOL = "pool"
    HOUR = "hour"


def sql(
    query: Annotated[
        str | None, typer.Argument(metavar="SQL", help="One SELECT (DuckDB's dialect).")
    ] = None,
    state: StateOption = STATE,
    as_json: JsonOption = False,
    as_csv: Csv = False,
    file: Annotated[
        Path | None, typer.Option("--file", help="Read the SQL from a file; - is standard input.")
    ] = None,
    max_rows: Annotated[
        int, typer.Option("--max-rows", min=1, max=10_000_000, help="Print at most so many rows.")
    ] = 1000,
    parquet: Annotated[
        Path | None,
        typer.Option("--parquet", metavar="FILE", help="Write all rows to FILE, print none."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace FILE if it is there.")] = False,
) -> None:
    """Ask the usage database. Try: headrace sql "FROM requests", or "SHOW TABLES".

    While the pipeline runs, the answer holds everything metered so far; else the last snapshot.
    Files and settings are out of reach of SQL, 1 GB and 30 s are the limits. Exit codes: 1 the query
    failed, 2 wrong usage, 3 no data yet.
    """
    _one_format(as_json, as_csv, parquet is not None)
    text = _sql_text(query, file)
    if parquet is not None and parquet.exists() and not force:
        raise _exit(f"{parquet} is there already; --force replaces it", MISUSED)
    try:
        with open_snapshot(_snapshot(state)) as connection:
            if parquet is not None:
                _export(connection, text, parquet)
                return
            with bounded(TIME_LIMIT_S):
                found = answer(connection, text, max_rows, TIME_LIMIT_S)
    except NoDataError as error:
        raise fail(str(error), as_json, NO_DATA) from None
    except QueryError as error:
        raise fail(str(error), as_json, FAILED) from None
    if as_json:
        print_json(plain(objects(found.columns, found.rows)))
    elif as_csv:
        print_csv(found.columns, found.rows)
    else:
        print_table(found.columns, found.rows, upright=True)
    if found.cut:
        _note(f"only the first {max_rows} rows are shown; raise --max-rows for more")


def costs(
    by: Annotated[By, typer.Option("--by", help="Group by this.")] = By.TENANT,
    since: Annotated[
        str | None, typer.Option("--since", metavar="AGE", help="Only the last 30m, 24h, 7d, …")
    ] = None,
    state: StateOption = STATE,
    as_json: JsonOption = False,
    as_csv: Csv = False,
) -> None:
    """What the requests cost, and the whole bill: busy, overhead and idle time.

    Exit codes: 1 the snapshot cannot be read, 2 wrong usage, 3 no data yet.
    """
    _one_format(as_json, as_csv, False)
    try:
        start = window(parse_age(since)) if since else None
    except ValueError as error:
        raise fail(str(error), as_json, MISUSED) from None
    try:
        with open_snapshot(_snapshot(state)) as connection:
            report = read_costs(connection, by.value, start)
    except NoDataError as error:
        raise fail(str(error), as_json, NO_DATA) from None
    except (QueryError, duckdb.Error) as error:
        raise fail(str(error), as_json, FAILED) from None
    if as_json:
        print_json(
            plain({"by": by.value, "since": start, "rows": report.rows, "bill": report.bill})
        )
    elif as_csv:
        names = list(report.rows[0]) if report.rows else ["name"]
        print_csv(names, [list(row.values()) for row in report.rows])
    else:
        _print_costs(report)


def _print_costs(report: Costs) -> None:
    age = f"since {report.since:%Y-%m-%d %H:%M} UTC" if report.since else "since the beginning"
    columns = {
        "name": report.dimension,
        "requests": "requests",
        "prompt_tokens": "prompt\ntokens",
        "cached_tokens": "of them\ncached",
        "completion_tokens": "compl.\ntokens",
        "accelerator_s": "accel.\nseconds",
        "amount": "amount",
        "per_1k_prompt": "per 1k\nprompt",
        "per_1k_completion": "per 1k\ncompl.",
        "per_1k_tokens": "per 1k\ntokens",
    }
    currencies = {str(row["currency"]) for row in report.rows}
    mixed = len(currencies) > 1
    if not mixed and currencies:
        columns["amount"] = f"amount\n{currencies.pop()}"
    narrow = console().width < WIDE_ENOUGH
    if narrow or not any(row["cached_tokens"] for row in report.rows):
        del columns["cached_tokens"]
    if narrow:
        del columns["accelerator_s"]
    rows = [[_cell(row, name, mixed) for name in columns] for row in report.rows]
    print_table(list(columns.values()), rows, f"Requests by {report.dimension}, {age}")
    typer.echo()
    _print_bill(report.bill, "\n" if narrow else " ")


def _print_bill(bill: list[Row], gap: str) -> None:
    """`gap` stands between an amount and its share of the time."""
    parts = ("busy", "overhead", "idle")
    rows = [
        [
            row["pool"] or "all pools",
            *(
                f"{money(row[f'{part}_amount'])}{gap}({row[f'{part}_share'] or 0:.1%})"
                for part in parts
            ),
            f"{money(row['amount'])} {row['currency']}",
            money(row["per_1k_tokens"]),
        ]
        for row in bill
    ]
    heads = ["pool", *parts, "bill", "per 1k tokens,\nall in"]
    print_table(heads, rows, "The bill = busy + overhead + idle (share of time)")


def _cell(row: Mapping[str, Any], name: str, with_currency: bool) -> Any:
    if name == "amount" and with_currency:
        return f"{money(row[name])} {row['currency']}"
    if name == "accelerator_s":
        return f"{row[name]:,.3f}"
    return money(row[name]) if name == "amount" or name.startswith("per_1k") else row[name]


def _sql_text(query: str | None, file: Path | None) -> str:
    if (query is None) == (file is None):
        raise _exit('write the SQL as one argument, or --file; try "FROM requests"', MISUSED)
    if file is None:
        assert query is not None
        return query
    try:
        return sys.stdin.read() if str(file) == "-" else file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise _exit(f"cannot read {file}: {error}", MISUSED) from None


def _one_format(*chosen: bool) -> None:
    if sum(chosen) > 1:
        raise _exit("choose one of --json, --csv and (for sql) --parquet", MISUSED)


def _export(connection: duckdb.DuckDBPyConnection, text: str, path: Path) -> None:
    from analytics.export import (
        draft_of,
        export_parquet,
    )  # imports polars, which only this should pay for

    try:
        with bounded(TIME_LIMIT_S, draft=draft_of(path)):
            count = export_parquet(connection, text, path, TIME_LIMIT_S)
    except OSError as error:
        raise _exit(f"cannot write {path}: {error.strerror or error}", FAILED) from None
    _note(f"{count} rows are in {path}")


def _snapshot(state: Path) -> Path:
    """The snapshot file, made fresh if the pipeline runs; a note says so if not."""
    path = state / "metering" / "snapshot.duckdb"
    problem = _refresh(state)
    if problem and path.exists():
        made = datetime.fromtimestamp(path.stat().st_mtime, UTC)
        _note(f"{problem}; this is the snapshot of {made:%Y-%m-%d %H:%M:%S} UTC")
    return path


def _refresh(state: Path) -> str | None:
    """Ask metering for a fresh snapshot; returns what stood in the way."""
    try:
        address = BusAddress.model_validate_json((state / "bus.json").read_bytes())
    except FileNotFoundError:
        return "the pipeline is not running"
    except (OSError, ValidationError) as error:
        return f"cannot read {state / 'bus.json'} ({type(error).__name__})"
    if not _listens(address.url):
        return "the pipeline is not running"
    try:
        asyncio.run(_ask(address))
    except (HeadraceError, OSError, nats.errors.Error) as error:
        return f"metering did not answer ({error or type(error).__name__})"
    return None


async def _ask(address: BusAddress) -> SnapshotReply:
    bus = await asyncio.wait_for(Bus.connect(address, "headrace-sql"), CONNECT_S)
    try:
        return await bus.request(subjects.SNAPSHOT, SnapshotCall(), SnapshotReply, ASK_S)
    finally:
        await bus.close()


def _listens(url: str) -> bool:
    parts = urlsplit(url)
    try:
        socket.create_connection((parts.hostname or "", parts.port or 4222), CONNECT_S).close()
    except OSError:
        return False
    return True


def _note(text: str) -> None:
    typer.echo(text, err=True)


def _exit(text: str, code: int) -> typer.Exit:
    _note(text)
    return typer.Exit(code)
