"""`headrace history`: the generations of the topology, newest first."""

from datetime import UTC, datetime
from itertools import pairwise

from rich.console import Console
from rich.table import Table

from contracts.lifecycle import Change, Generation
from stages.cli.changes import MARKS, count
from stages.cli.changes import as_json as changes_as_json
from stages.cli.common import STATE, JsonOption, StateOption, print_json
from stages.cli.running import need_running, run
from stages.control.diff import diff
from stages.control.generations import Generations
from stages.control.state import StateFolder
from stages.runtime.bus import Bus

_PATHS = 3


async def read_history(bus: Bus) -> list[Generation]:
    """Oldest first."""
    return await Generations(bus).history()


def history(state: StateOption = STATE, as_json: JsonOption = False) -> None:
    """Show the last 64 generations: when, why and what each changed; `headrace rollback` goes back.

    Exit code 0, 3 when nothing runs. With --json each has its changes and its text.
    """
    folder = StateFolder(state)
    need_running(folder, as_json)
    kept = run(folder, as_json, read_history)
    rows = list(zip(kept, _changes(kept), strict=True))[::-1]
    if as_json:
        print_json({"generations": [_document(*row) for row in rows]})
        return
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in ("generation", "when (UTC)", "why", "changes"):
        table.add_column(
            name, header_style="dim", justify="right" if name == "generation" else "left"
        )
    for one, changes in rows:
        when = datetime.fromtimestamp(one.applied_ms / 1000, UTC)
        table.add_row(
            str(one.generation), f"{when:%Y-%m-%d %H:%M:%S}", _why(one), _summary(changes)
        )
    Console(soft_wrap=True, highlight=False).print(table)


def _changes(kept: list[Generation]) -> list[list[Change] | None]:
    """What each changed; None for the oldest that is kept."""
    if not kept:
        return []
    return [None, *(diff(one.topology, after.topology) for one, after in pairwise(kept))]


def _why(one: Generation) -> str:
    return one.reason if one.undoes is None else f"{one.reason} to {one.undoes}"


def _summary(changes: list[Change] | None) -> str:
    if changes is None:
        return ""
    paths = ", ".join(f"{MARKS[one.kind]}{one.path}" for one in changes[:_PATHS])
    more = ", …" if len(changes) > _PATHS else ""
    return f"{count(changes)}: {paths}{more}" if changes else "none"


def _document(one: Generation, changes: list[Change] | None) -> dict[str, object]:
    return {
        "generation": one.generation,
        "applied_ms": one.applied_ms,
        "reason": one.reason,
        "undoes": one.undoes,
        "changes": None if changes is None else changes_as_json(changes),
        "text": one.text,
    }
