"""`headrace up`: check, start the watchdog (which starts control), show what happens, stay or leave."""

import signal
from pathlib import Path
from typing import Annotated

import typer

from stages.cli.common import (
    FAILED,
    STATE,
    FileArgument,
    JsonOption,
    StateOption,
    TopologyOption,
    fail,
    hint,
    print_json,
    topology_file,
)
from stages.cli.progress_view import View
from stages.cli.starting import Starting
from stages.control.machine import check_machine
from stages.control.state import StateFolder
from stages.runtime.topology_file import load_topology

CONTROL = "stages.control"


def up(
    file: FileArgument = None,
    topology_option: TopologyOption = None,
    state: StateOption = STATE,
    detach: Annotated[
        bool, typer.Option("--detach", help="Return once all is ready; `headrace down` stops it.")
    ] = False,
    watch: Annotated[
        bool, typer.Option("--watch", help="Apply the file whenever it is saved.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Start nats-server, every stage and the executors; Ctrl-C stops them cleanly.

    What an earlier control left running is taken over if the file is the same, else ended. Exit code
    0 after a clean stop (with --detach: once all is ready), 1 when it cannot start. With --json each
    step is one JSON object a line; with --detach only the last is printed.
    """
    topology = topology_file(file, topology_option)
    folder = StateFolder(state)
    _refuse_second(folder, as_json)
    _refuse_mistakes(topology, folder, as_json)
    folder.make()
    claim = folder.lock("up")
    if claim is None:
        raise fail(f"another `headrace up` is just starting here ({folder.root})", as_json)
    with claim:
        _refuse_second(folder, as_json)
        if watch:
            folder.watch.touch(0o600)
        else:
            folder.watch.unlink(missing_ok=True)
        starting = Starting(folder, topology.absolute(), CONTROL)
        before = {
            number: signal.signal(number, starting.on_signal)
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        }
        try:
            watched = starting.begin()
        finally:
            claim.truncate(0)  # signs nothing any more: `down` need not wait for us
    try:
        if not watched:
            raise fail(starting.why(), as_json)
        view = View(folder, topology, detach, as_json)
        code = view.follow(starting)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    raise typer.Exit(code)


def _refuse_second(folder: StateFolder, as_json: bool) -> None:
    running = folder.looked_after()
    if running is not None:
        known = folder.read()
        where = f", {known.bus_url}" if known is not None else ""
        raise fail(
            f"already running here (pid {running.pid}{where}); see {hint('status', folder)}, "
            f"or stop it with {hint('down', folder)}",
            as_json,
        )


def _refuse_mistakes(topology: Path, folder: StateFolder, as_json: bool) -> None:
    report = load_topology(topology)
    # What a killed control left is taken over or ended, so its ports are not in the way.
    check_machine(report, folder.root, folder.holding_ports())
    for line in report.lines():
        typer.echo(line, err=True)
    if report.errors:
        if as_json:
            print_json({"error": "\n".join(one.text(report.file) for one in report.errors)})
        raise typer.Exit(FAILED)
