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
from analytics.reader import TIME_LIMIT_S, NoDataError, QueryError, answer, open_snapshot
from contracts import subjects
from contracts.errors import HeadraceError
from contracts.internal import SnapshotCall, SnapshotReply
from stages.cli.rows import money, objects, print_csv, print_json, print_table
from stages.runtime.bus import Bus
from stages.runtime.launch import BusAddress

FAILED: Final = 1
MISUSED: Final = 2
NO_DATA: Final = 3
ASK_S: Final = 6.0
CONNECT_S: Final = 2.0

State = Annotated[Path, typer.Option("--state", help="The pipeline's state folder.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
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
    state: State = Path(".headrace"),
    as_json: Json = False,
    as_csv: Csv = False,
    file: Annotated[
        Path | None, typer.Option("--file", help="Read the SQL from a file; - is standard input.")
    ] = None,
    max_rows: Annotated[
        int, typer.Option("--max-rows", min=1, max=10_000_000, help="Print at most so many rows.")
    ] = 1000,
) -> None:
    """Ask the usage database. Try: headrace sql "FROM requests", or "SHOW TABLES".

    While the pipeline runs, the answer holds everything metered so far; else the last snapshot.
    Files and settings are out of reach, 1 GB and 30 s are the limits. Exit codes: 1 the query
    failed, 2 wrong usage, 3 no data yet.
    """
    _one_format(as_json, as_csv)
    text = _sql_text(query, file)
    try:
        with open_snapshot(_snapshot(state)) as connection:
            found = answer(connection, text, max_rows, TIME_LIMIT_S)
    except NoDataError as error:
        raise _exit(str(error), NO_DATA) from None
    except QueryError as error:
        raise _exit(str(error), FAILED) from None
    if as_json:
        print_json(objects(found.columns, found.rows))
    elif as_csv:
        print_csv(found.columns, found.rows)
    else:
        print_table(found.columns, found.rows)
    if found.cut:
        _note(f"only the first {max_rows} rows are shown; raise --max-rows for more")


def costs(
    by: Annotated[By, typer.Option("--by", help="Group by this.")] = By.TENANT,
    since: Annotated[
        str | None, typer.Option("--since", metavar="AGE", help="Only the last 30m, 24h, 7d, …")
    ] = None,
    state: State = Path(".headrace"),
    as_json: Json = False,
    as_csv: Csv = False,
) -> None:
    """What the requests cost, and the whole bill: busy, overhead and idle time.

    Exit codes: 1 the snapshot cannot be read, 2 wrong usage, 3 no data yet.
    """
    _one_format(as_json, as_csv)
    try:
        start = window(parse_age(since)) if since else None
    except ValueError as error:
        raise _exit(str(error), MISUSED) from None
    try:
        with open_snapshot(_snapshot(state)) as connection:
            report = read_costs(connection, by.value, start)
    except NoDataError as error:
        raise _exit(str(error), NO_DATA) from None
    except (QueryError, duckdb.Error) as error:
        raise _exit(str(error), FAILED) from None
    if as_json:
        print_json({"by": by.value, "since": start, "rows": report.rows, "bill": report.bill})
    elif as_csv:
        names = list(report.rows[0]) if report.rows else ["name"]
        print_csv(names, [list(row.values()) for row in report.rows])
    else:
        _print_costs(report)


def _print_costs(report: Costs) -> None:
    age = f"since {report.since:%Y-%m-%d %H:%M} UTC" if report.since else "since ever"
    columns = {
        "name": report.dimension,
        "requests": "requests",
        "prompt_tokens": "prompt",
        "cached_tokens": "cached",
        "completion_tokens": "completion",
        "accelerator_s": "accelerator s",
        "amount": "amount",
        "per_1k_prompt": "per 1k prompt",
        "per_1k_completion": "per 1k completion",
        "per_1k_tokens": "per 1k tokens",
    }
    rows = [[_cell(row, name) for name in columns] for row in report.rows]
    print_table(list(columns.values()), rows, f"Requests by {report.dimension}, {age}")
    parts = ("busy", "overhead", "idle")
    bill = [
        [
            row["pool"] or "all pools",
            *(
                f"{money(row[f'{part}_amount'])} ({row[f'{part}_share'] or 0:.1%})"
                for part in parts
            ),
            f"{money(row['amount'])} {row['currency']}",
            money(row["per_1k_tokens"]),
        ]
        for row in report.bill
    ]
    heads = ["pool", *parts, "bill", "per 1k tokens, all in"]
    print_table(heads, bill, "The bill = busy + overhead + idle (share of time)")


def _cell(row: Mapping[str, Any], name: str) -> Any:
    if name == "amount":
        return f"{money(row[name])} {row['currency']}"
    if name == "accelerator_s":
        return f"{row[name]:,.3f}"
    return money(row[name]) if name.startswith("per_1k") else row[name]


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


def _one_format(as_json: bool, as_csv: bool) -> None:
    if as_json and as_csv:
        raise _exit("choose one of --json and --csv", MISUSED)


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
    typer.echo(f"headrace: {text}", err=True)


def _exit(text: str, code: int) -> typer.Exit:
    _note(text)
    return typer.Exit(code)
