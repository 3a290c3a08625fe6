"""When a key ends, as people write it."""

import re
from datetime import UTC, datetime, timedelta
from typing import Final

from stages.cli.keys.file import KeysError

_UNITS: Final = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_SPAN: Final = re.compile(r"([1-9][0-9]{0,5})([mhdw])")


def expiry(text: str, now: datetime) -> str:
    """`30d`, `12h` from now, or a time with its zone → `2027-01-31T00:00:00Z`. Raises `KeysError`."""
    span = _SPAN.fullmatch(text)
    at: datetime | None
    try:
        if span:
            at = now + timedelta(**{_UNITS[span[2]]: int(span[1])})
        else:
            at = datetime.fromisoformat(text)
    except (ValueError, OverflowError):
        at = None
    if at is None or at.tzinfo is None:
        raise KeysError(
            f"--expires {text!r}: write a span such as 30d, 12h or 90m, or a time with its zone "
            "such as 2027-01-31T00:00:00Z"
        )
    if at <= now:
        raise KeysError(f"--expires {text!r} is over already; name a time to come")
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
