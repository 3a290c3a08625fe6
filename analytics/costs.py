"""What it cost: requests by tenant, model, pool or hour, and the bill they are part of."""

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, Literal

import duckdb

from analytics import queries
from analytics.queries import Row

Dimension = Literal["tenant", "model", "pool", "hour"]
_AGE: Final = re.compile(r"(\d{1,6})([smhd])")
_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_BEGINNING: Final = datetime(1970, 1, 1)


@dataclass(frozen=True)
class Costs:
    """Rows of `costs_since` and `bill_since` (analytics/sql/views), for one window of time."""

    dimension: Dimension
    since: datetime | None
    rows: list[Row]
    bill: list[Row]

    @property
    def totals(self) -> list[Row]:
        """The bill of all pools together: one row a currency."""
        return [row for row in self.bill if row["pool"] is None]


def parse_age(text: str) -> timedelta:
    """`90s`, `30m`, `24h` or `7d`; raises `ValueError` that says what to write."""
    match = _AGE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not an age; write for example 30m, 24h or 7d")
    return timedelta(**{_UNITS[match[2]]: int(match[1])})


def window(age: timedelta, now: datetime | None = None) -> datetime:
    """The UTC time `age` ago, without a zone, as the database keeps it."""
    return (now or datetime.now(UTC)).replace(tzinfo=None) - age


def costs(
    connection: duckdb.DuckDBPyConnection, dimension: Dimension, since: datetime | None
) -> Costs:
    """Costs and bill of requests and executor time since a UTC time (None = ever)."""
    start = since or _BEGINNING
    return Costs(
        dimension,
        since,
        queries.run(connection, "costs", dimension=dimension, since=start),
        queries.run(connection, "bill", since=start),
    )
