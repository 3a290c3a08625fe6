"""`headrace apply`: the edited file becomes the running system, without a stop."""

from pathlib import Path

import typer
from rich.console import Console

from contracts.lifecycle import ApplyCall, ApplyEvent, Change
from stages.cli.changes import as_json as changes_as_json
from stages.cli.changes import count, shown
from stages.cli.common import (
    FAILED,
    OK,
    STATE,
    FileArgument,
    JsonOption,
    StateOption,
    TopologyOption,
    print_json,
    topology_file,
)
from stages.cli.plan import look
from stages.cli.running import ask_apply, need_running, run
from stages.control.state import StateFolder
from stages.runtime.bus import Bus
from stages.runtime.topology_file import Report, load_topology


def apply(
    file: FileArgument = None,
    topology: TopologyOption = None,
    state: StateOption = STATE,
    as_json: JsonOption = False,
) -> None:
    """Make FILE (default: the file that was started) the running system; requests go on meanwhile.

    New processes are started and ready, every stage has said that it can serve the new generation,
    then all take it over together, then what is not wanted any more is drained. When any of this
    fails, the old generation serves as before. Exit code 0 when FILE runs, 1 with the reason when
    it does not, 3 when nothing runs. Ctrl-C leaves the command; control goes on with the change.
    """
    folder = StateFolder(state)
    known = need_running(folder, as_json)
    report = load_topology(topology_file(file, topology, Path(known.topology_file)))
    wanted = report.topology
    if wanted is None or report.text is None:
        raise refuse(report, as_json)
    for line in report.lines():  # no mistakes, but what `check` warns of
        typer.echo(line, err=True)
    call = ApplyCall(text=report.text, file=report.file)
    changes = run(folder, as_json, look).changes(wanted)
    raise typer.Exit(make(folder, call, changes, as_json))


def refuse(report: Report, as_json: bool) -> typer.Exit:
    """A file with mistakes is refused whole; each is named. Raise what this returns."""
    for line in report.lines():
        typer.echo(line, err=True)
    typer.echo("nothing was changed", err=True)
    if as_json:
        print_json({"ok": False, "findings": [one.as_json() for one in report.findings]})
    return typer.Exit(FAILED)


def make(folder: StateFolder, call: ApplyCall, changes: list[Change], as_json: bool) -> int:
    """Have it done and show how; returns the exit code."""
    steps: list[str] = []
    console = Console(soft_wrap=True, highlight=False)
    if not as_json and changes:
        console.print(f"{count(changes)}:")
        for line in shown(changes):
            console.print(line)

    def show(event: ApplyEvent) -> None:
        if event.event != "step":
            return
        steps.append(event.text)
        if not as_json:
            console.print(event.text, markup=False)

    async def ask(bus: Bus) -> ApplyEvent:
        return await ask_apply(bus, call, show)

    end = run(folder, as_json, ask)
    done = end.event == "done"
    if as_json:
        print_json(
            {
                "ok": done,
                "generation": end.generation,
                "text": end.text,
                "changes": changes_as_json(changes),
                "steps": steps,
            }
        )
    if done and not as_json:
        console.print(end.text, markup=False)
    if not done:
        typer.echo(f"failed: {end.text}", err=True)
    return OK if done else FAILED
