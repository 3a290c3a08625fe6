"""From a message of the usage stream to a row: validated, or set aside with the reason."""

import math
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from pydantic import ValidationError

from contracts.usage import USAGE_EVENT, UsageEvent

REJECTED: Final = "rejected"
_TABLES: Final = {"attempt": "attempts", "receipt": "receipts", "interval": "intervals"}


@dataclass(frozen=True)
class Received:
    """A message as the stream delivered it."""

    subject: str
    data: bytes
    sequence: int
    stored_ms: float


@dataclass(frozen=True)
class Row:
    """Values by column for one table, and the message they came from."""

    table: str
    values: dict[str, Any]
    source: Received


def to_row(message: Received) -> Row:
    """A row of the event's own table, or of `rejected`."""
    try:
        event = USAGE_EVENT.validate_json(message.data)
    except ValidationError as error:
        return rejected(message, _reason(error))
    values = columns(event)
    endless = [name for name, value in values.items() if _is_endless(value)]
    if endless:
        return rejected(message, f"{endless[0]}: not a finite number")
    return Row(_TABLES[event.kind], values, message)


def columns(event: UsageEvent) -> dict[str, Any]:
    """An event's values by column name; maps in the form that DuckDB binds."""
    values: dict[str, Any] = {"key": event.key}
    for name, value in event:
        if isinstance(value, dict):
            values[name] = {"key": list(value), "value": list(value.values())}
        elif isinstance(value, Enum):
            values[name] = value.value
        else:
            values[name] = value
    del values["kind"]
    price = values.pop("price", None)
    if price is not None:
        values["accelerator_hour"] = price.accelerator_hour
        values["currency"] = price.currency
    return values


def rejected(message: Received, reason: str) -> Row:
    """A row that keeps the message's text; unreadable bytes and NULs are shown as \\x.."""
    raw = message.data.decode(errors="backslashreplace").replace("\x00", "\\x00")
    values = {
        "key": f"{message.sequence}:{message.stored_ms:.3f}",
        "subject": message.subject,
        "stored_ms": message.stored_ms,
        "raw": raw,
        "reason": reason,
    }
    return Row(REJECTED, values, message)


def _is_endless(value: object) -> bool:
    if isinstance(value, dict):
        return any(_is_endless(part) for part in value["value"])
    return isinstance(value, float) and not math.isfinite(value)


def _reason(error: ValidationError) -> str:
    problems = error.errors(include_url=False, include_input=False, include_context=False)
    return "; ".join(
        f"{'.'.join(str(part) for part in problem['loc']) or 'event'}: {problem['msg']}"
        for problem in problems[:5]
    )
