"""Changes of a topology, for people and programs."""

from collections.abc import Sequence, Sized
from typing import Any, Final

from rich.text import Text

from contracts.lifecycle import Change
from stages.cli.common import plural

MARKS: Final = {"add": "+", "change": "~", "remove": "-"}
_COLOURS: Final = {"add": "green", "change": "yellow", "remove": "red"}
_EFFECTS: Final = {
    "live": "live",
    "start": "starts processes",
    "stop": "drains and stops processes",
    "replace": "replaces its executors, one beside the other",
    "restart": "not while it runs",
}


def shown(changes: Sequence[Change]) -> list[Text]:
    """One line each: what, from what to what, what it takes."""
    return [_line(one) for one in changes]


def _line(change: Change) -> Text:
    values = [one for one in (change.before, change.after) if one is not None]
    effect = Text(f"  ({_EFFECTS[change.effect]})", "red" if change.effect == "restart" else "dim")
    mark = Text(f"  {MARKS[change.kind]} {change.path}", _COLOURS[change.kind])
    return Text.assemble(mark, "  ", " → ".join(values), effect)


def as_json(changes: Sequence[Change]) -> list[dict[str, Any]]:
    """For --json."""
    return [one.model_dump() for one in changes]


def count(changes: Sized) -> str:
    """`1 change`, `3 changes`."""
    return plural(len(changes), "change")
