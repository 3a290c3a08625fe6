"""Rows of a query as a table for people, or as JSON or CSV for programs."""

import csv
import json
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Final, Literal

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

WIDE: Final = 10_000


def console() -> Console:
    """Standard output; into a pipe, lines are never folded."""
    return Console() if sys.stdout.isatty() else Console(width=WIDE)


def print_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[Any]],
    title: str = "",
    upright: bool = False,
) -> None:
    """A table whose cells are plain text: no markup, no terminal control characters.

    `upright`: if it is wider than the terminal, one block of `column: value` lines a row instead.
    """
    rows = list(rows)
    table = Table(
        title=title or None,
        title_justify="left",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
        show_edge=False,
    )
    for index, name in enumerate(columns):
        numeric = any(isinstance(row[index], int | float | Decimal) for row in rows)
        justify: Literal["right", "left"] = "right" if numeric else "left"
        table.add_column(Text(shown(name)), justify=justify, overflow="fold")  # cut nothing off
    for row in rows:
        table.add_row(*(Text(shown(value)) for value in row))
    out = console()
    if (
        upright
        and rows
        and out.measure(table, options=out.options.update(width=WIDE)).maximum > out.width
    ):
        _print_upright(out, columns, rows)
    else:
        out.print(table)


def _print_upright(out: Console, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    for number, row in enumerate(rows, 1):
        out.print(Text(f"-- row {number}"))
        for name, value in zip(columns, row, strict=True):
            out.print(Text(f"{shown(name)}: {shown(value)}".rstrip(), overflow="fold"))


def print_csv(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """CSV with a header line; an empty field is NULL."""
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([_flat(value) for value in row] for row in rows)


def objects(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> list[dict[str, Any]]:
    """One dictionary a row; a column name used again gets a number."""
    names: list[str] = []
    for name in columns:
        count = names.count(name)
        names.append(f"{name}_{count + 1}" if count else name)
    return [dict(zip(names, row, strict=True)) for row in rows]


def plain(value: Any) -> Any:
    """A value made of JSON's own types: NaN becomes null, times ISO 8601 (UTC)."""
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else None
        case Decimal():
            return float(value)
        case datetime() | date() | time():
            return value.isoformat()
        case timedelta():
            return value.total_seconds()
        case Mapping():
            return {str(key): plain(part) for key, part in value.items()}
        case list() | tuple():
            return [plain(part) for part in value]
        case _:
            return str(value)


def shown(value: Any) -> str:
    """A value as a cell of a table."""
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.6g}"
    text = str(_flat(value))
    return "".join(
        char if char.isprintable() or char == "\n" else ascii(char)[1:-1] for char in text
    )


def money(value: float | None) -> str:
    """Three significant digits, never an exponent: 0.0000179, 1,230."""
    if value is None:
        return ""
    return f"{Decimal(f'{value:.3g}'):,f}" if value else "0"


def _flat(value: Any) -> Any:
    value = plain(value)
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list) else value
