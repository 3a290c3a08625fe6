"""`headrace check`: all mistakes of a topology file, each with its line."""

from typing import Annotated

import typer

from stages.cli.common import (
    FAILED,
    STATE,
    FileArgument,
    JsonOption,
    StateOption,
    TopologyOption,
    plural,
    print_json,
    topology_file,
)
from stages.control.machine import check_machine
from stages.control.state import StateFolder
from stages.runtime.topology_file import Report, load_topology


def check(
    file: FileArgument = None,
    topology: TopologyOption = None,
    state: StateOption = STATE,
    file_only: Annotated[
        bool, typer.Option("--file-only", help="Do not look at this machine (ports, models).")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Name every mistake of FILE at once: line, key, what was expected, what to write.

    Exit code 0 when `headrace up` could run it here, 1 when it could not.
    """
    report = load_topology(topology_file(file, topology))
    if not file_only:
        check_machine(report, state, StateFolder(state).holding_ports())
    if as_json:
        print_json(
            {
                "file": report.file,
                "ok": not report.errors,
                "findings": [one.as_json() for one in report.findings],
            }
        )
    else:
        for line in report.lines():
            typer.echo(line)
        typer.echo(summary(report))
    raise typer.Exit(FAILED if report.errors else 0)


def summary(report: Report) -> str:
    """The last line."""
    if report.errors:
        return f"{plural(len(report.errors), 'mistake')} in {report.file}"
    assert report.topology is not None
    pools = plural(len(report.topology.pools), "pool")
    routes = plural(len(report.topology.routes), "route")
    return f"{report.file} is right: {pools}, {routes}"
