"""A value as one line of YAML, for people who know the file."""

import json
import re
from collections.abc import Mapping
from typing import Any, Final

_PLAIN: Final = re.compile(r"[A-Za-z][A-Za-z0-9_./-]*")
_WORDS: Final = frozenset({"true", "false", "yes", "no", "on", "off", "null", "y", "n"})


def flow(value: Any) -> str:
    """`{min: 1, max: 2}`, `[512, 2048]`, `auto`; quoted where YAML would read it otherwise."""
    match value:
        case Mapping():
            return "{" + ", ".join(f"{flow(key)}: {flow(one)}" for key, one in value.items()) + "}"
        case list() | tuple():
            return "[" + ", ".join(map(flow, value)) + "]"
        case str() if _PLAIN.fullmatch(value) and value.lower() not in _WORDS:
            return value
        case _:
            return json.dumps(value, ensure_ascii=False)
