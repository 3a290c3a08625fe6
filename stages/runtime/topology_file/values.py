"""What a mistaken value probably meant: `64k`, `120s`, `"0.08 USD"`, a key that was not hashed."""

import hashlib
import json
import re
from difflib import get_close_matches
from typing import Any, Final

from stages.runtime.topology_file.options import Option

_QUANTITY: Final = re.compile(
    r"[$€£]?\s*(?P<number>-?\d[\d_,]*(?:\.\d+)?)\s*(?P<unit>[A-Za-z/$€£ ]*)"
)
_TIME_MS: Final = {
    **dict.fromkeys(("ms", "msec", "millisecond", "milliseconds"), 1),
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1000),
    **dict.fromkeys(("m", "min", "mins", "minute", "minutes"), 60_000),
    **dict.fromkeys(("h", "hr", "hour", "hours"), 3_600_000),
}
_SIZES: Final = {
    **dict.fromkeys(("b", "byte", "bytes"), 1),
    **dict.fromkeys(("k", "kb", "kib", "ki"), 1 << 10),
    **dict.fromkeys(("m", "mb", "mib", "mi"), 1 << 20),
    **dict.fromkeys(("g", "gb", "gib", "gi"), 1 << 30),
    **dict.fromkeys(("t", "tb", "tib", "ti"), 1 << 40),
}
_COUNTS: Final = {"k": 1000, "m": 1_000_000}


def factors(unit: str | None) -> dict[str, int]:
    """Spellings of units that measure the same as `unit`, each as a multiple of it."""
    match unit:
        case "ms":
            return _TIME_MS
        case "bytes":
            return _SIZES
        case "tokens":
            return {**_SIZES, "token": 1, "tokens": 1}
        case None:
            return _COUNTS
        case _:
            return {**_COUNTS, unit: 1}


def rewrite(value: Any, option: Option) -> str | None:
    """The text to write instead of `value`, where it can be told."""
    if option.choices:
        return _choice(value, option)
    match option.kind:
        case "integer" | "number":
            return _number(value, option)
        case "string":
            if isinstance(value, (bool, int, float)):
                return json.dumps(str(value).lower() if isinstance(value, bool) else str(value))
            return _key_hash(value, option) if isinstance(value, str) else None
        case "array" if isinstance(value, (str, int, float)) and not isinstance(value, bool):
            return f"[{value}]"
        case _:
            return None


def _choice(value: Any, option: Option) -> str | None:
    choices = [str(choice).lower() for choice in option.choices]
    if len(choices) == 1:
        return choices[0]
    close = get_close_matches(str(value).lower(), choices, n=1)
    return close[0] if close else None


def _number(value: Any, option: Option) -> str | None:
    number = value if isinstance(value, (int, float)) else None
    if isinstance(value, bool):
        return None
    if isinstance(value, str):
        number = quantity(value, option.unit)
    if number is None or number != number or abs(number) == float("inf"):
        return None
    whole = int(number)
    if option.kind == "integer" and whole != number:
        return None
    if not option.allows(number) or (number == value and type(value) is not float):
        return None
    return str(whole if whole == number else number)


def quantity(text: str, unit: str | None) -> float | None:
    """`64k` (tokens) → 65536, `2m` (ms) → 120000, `0.08 USD` → 0.08; None when it is no quantity."""
    match = _QUANTITY.fullmatch(text.strip())
    if match is None:
        return None
    number = float(match["number"].replace("_", "").replace(",", ""))
    said = match["unit"].strip().lower()
    if not said:
        return number
    if unit == "currency per hour":
        return number
    for word in reversed(said.split()):
        if word in factors(unit):
            number *= factors(unit)[word]
        elif word != unit:
            return None
    return number


def _key_hash(value: str, option: Option) -> str | None:
    if "sha256" not in str(option.schema.get("pattern", "")):
        return None
    if re.fullmatch(r"(sha256:)?[0-9a-fA-F]{64}", value):
        return f"sha256:{value.rpartition(':')[2].lower()}"
    if value.startswith("sha256:"):
        return None
    digest = hashlib.sha256(value.encode()).hexdigest()
    return f"its hash, sha256:{digest}"
