"""One mistake in a topology file, as a person and a program read it."""

import json
from dataclasses import dataclass
from typing import Any, Final, Literal

Path = tuple[str | int, ...]
Level = Literal["error", "warning"]

_LONGEST: Final = 60


@dataclass(frozen=True)
class Finding:
    """Where the mistake is, what is there, what was expected and what to write."""

    path: Path
    line: int | None
    problem: str
    expected: str | None = None
    write: str | None = None
    level: Level = "error"

    @property
    def key(self) -> str:
        """The dotted key, for example `routes[0].pool`; empty for the whole file."""
        return dotted(self.path)

    @property
    def message(self) -> str:
        """Problem, expectation and advice in one sentence."""
        parts = [self.problem]
        if self.expected:
            parts.append(f"expected {self.expected}")
        if self.write:
            parts.append(f"write {self.write}")
        return "; ".join(parts)

    def text(self, file: str) -> str:
        """One line for people, in the form editors can jump to."""
        where = file if self.line is None else f"{file}:{self.line}"
        named = f"{self.key}: " if self.path else ""
        mark = "warning: " if self.level == "warning" else ""
        return f"{where}: {mark}{named}{self.message}"

    def as_json(self) -> dict[str, Any]:
        """For `headrace check --json`."""
        return {
            "level": self.level,
            "line": self.line,
            "key": self.key,
            "message": self.message,
            "problem": self.problem,
            "expected": self.expected,
            "write": self.write,
        }


def dotted(path: Path) -> str:
    """`("routes", 0, "pool")` → `routes[0].pool`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def shown(path: Path, value: Any) -> str:
    """A value as it may be printed: short, and never an API key."""
    if path[:1] == ("tenants",) and isinstance(value, str):
        return "the value (not shown)"
    if value is None:
        return "an empty value"
    if isinstance(value, (dict, list)):
        return "a section" if isinstance(value, dict) else "a list"
    text = json.dumps(value, ensure_ascii=False) if isinstance(value, (str, bool)) else str(value)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def kind_of(value: Any) -> str:
    """What a YAML value is, in words."""
    match value:
        case None:
            return "empty"
        case bool():
            return "true or false"
        case int():
            return "a whole number"
        case float():
            return "a number"
        case str():
            return "text"
        case list():
            return "a list"
        case _:
            return "a section"
