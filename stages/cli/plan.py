"""`headrace plan`: what an edited file would change in the running system, and drift."""

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from contracts.lifecycle import Actuals, Change, Generation
from contracts.topology import Topology
from stages.cli.changes import as_json as changes_as_json
from stages.cli.changes import count, shown
from stages.cli.common import (
    FAILED,
    MISUSED,
    OK,
    STATE,
    FileArgument,
    JsonOption,
    StateOption,
    TopologyOption,
    hint,
    print_json,
    topology_file,
)
from stages.cli.running import need_running, run, serving, status_of
from stages.control.diff import diff
from stages.control.generations import Generations
from stages.control.machine import check_machine
from stages.control.state import StateFolder
from stages.runtime.bus import Bus
from stages.runtime.topology_file import Report, load_topology


@dataclass(frozen=True)
class Seen:
    """What runs: the generation, what was decided while running, and where processes differ."""

    generation: Generation
    actuals: Actuals
    drift: list[str]

    def changes(self, wanted: Topology) -> list[Change]:
        """From what runs to `wanted`."""
        return diff(self.generation.topology, wanted, self.actuals)


async def look(bus: Bus) -> Seen:
    """Ask the bucket and control."""
    generation = await serving(bus)
    actuals = await Generations(bus).actuals()
    status = await status_of(bus)
    if status is None:
        return Seen(generation, actuals, ["control does not answer; processes are not compared"])
    change = [] if status.change is None else [f"a change is being made: {status.change}"]
    return Seen(generation, actuals, [*change, *status.astray])


def plan(
    file: FileArgument = None,
    topology: TopologyOption = None,
    state: StateOption = STATE,
    exit_code: Annotated[
        bool, typer.Option("--exit-code", help="Exit with 2 when there is something to change.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Show how FILE (default: the file that was started) differs from what runs; nothing is changed.

    Also shows drift: processes that are missing, surplus, outdated or at an older generation. Exit
    code 0, with --exit-code 2 when something would change; 1 when FILE has mistakes or could not be
    applied; 3 when nothing runs.
    """
    folder = StateFolder(state)
    known = need_running(folder, as_json)
    report = load_topology(topology_file(file, topology, Path(known.topology_file)))
    wanted = report.topology
    check_machine(report, folder.root, known)
    seen = run(folder, as_json, look)
    changes = seen.changes(wanted) if wanted is not None else []
    if as_json:
        print_json(_document(report, seen, changes))
    else:
        usual = Path(report.file).absolute() == Path(known.topology_file)
        command = hint("apply" if usual else f"apply {shlex.quote(report.file)}", folder)
        _print(report, seen, changes, None if wanted is None else command)
    if report.errors or any(one.effect == "restart" for one in changes):
        raise typer.Exit(FAILED)
    raise typer.Exit(MISUSED if exit_code and changes else OK)


def _document(report: Report, seen: Seen, changes: list[Change]) -> dict[str, object]:
    return {
        "file": report.file,
        "generation": seen.generation.generation,
        "ok": not report.errors and all(one.effect != "restart" for one in changes),
        "changes": changes_as_json(changes),
        "drift": seen.drift,
        "findings": [one.as_json() for one in report.findings],
    }


def _print(report: Report, seen: Seen, changes: list[Change], command: str | None) -> None:
    console = Console(soft_wrap=True, highlight=False)
    for line in report.lines():
        console.print(line, markup=False)
    for one in seen.drift:
        console.print(f"drift: {one}", markup=False)
    if command is None:
        console.print(f"generation {seen.generation.generation} serves; nothing was compared")
        return
    if not changes:
        console.print(
            f"no changes: generation {seen.generation.generation} is {report.file}", markup=False
        )
        return
    came = f"generation {seen.generation.generation} → {report.file}: {count(changes)}"
    console.print(came, markup=False)
    for change in shown(changes):
        console.print(change)
    if report.errors:
        console.print("it could not be applied here: see above")
    elif any(one.effect == "restart" for one in changes):
        console.print("it cannot be applied while the pipeline runs: see `not while it runs`")
    else:
        console.print(f"{command} makes it so")
