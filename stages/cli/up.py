"""`headrace up`: check, start control, show how the processes get ready, stay or leave."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Annotated, Any

import typer

from stages.cli.common import FAILED, STATE, JsonOption, StateOption, fail, print_json
from stages.control.logs import fresh_log, tail
from stages.control.machine import check_machine
from stages.control.state import StateFolder
from stages.runtime.topology_file import load_topology

Event = dict[str, Any]

CONTROL = "stages.control"


def up(
    topology: Annotated[
        Path, typer.Option("--topology", metavar="FILE", help="The system to run.")
    ] = Path("topology.yaml"),
    state: StateOption = STATE,
    detach: Annotated[
        bool, typer.Option("--detach", help="Return once all is ready; `headrace down` stops it.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Start nats-server, every stage and the executors; Ctrl-C stops them cleanly.

    Exit code 0 after a clean stop (with --detach: once all is ready), 1 when it cannot start. With
    --json each step is one JSON object a line; with --detach only the last is printed.
    """
    folder = StateFolder(state)
    running = folder.running()
    if running is not None:
        raise fail(
            f"already running here (pid {running.control.pid}, {running.bus_url}); "
            "see `headrace status`, or stop it with `headrace down`",
            as_json,
        )
    _refuse_mistakes(topology, folder, as_json)
    folder.make()
    with _control(topology, folder) as control:
        assert control.stdout is not None
        view = _View(folder, topology, detach, as_json)
        code = view.follow(control, control.stdout)
    raise typer.Exit(code)


def _refuse_mistakes(topology: Path, folder: StateFolder, as_json: bool) -> None:
    report = load_topology(topology)
    # What a killed control left is ended by the new one, so its ports are not in the way.
    check_machine(report, folder.root, folder.holding_ports())
    for line in report.lines():
        typer.echo(line, err=True)
    if report.errors:
        if as_json:
            print_json({"error": "\n".join(one.text(report.file) for one in report.errors)})
        raise typer.Exit(FAILED)


@contextmanager
def _control(topology: Path, folder: StateFolder) -> Iterator[subprocess.Popen[str]]:
    """Control in a session of its own; a signal to us asks it to stop."""
    log = folder.log("control")
    fresh_log(log)
    command = [sys.executable, "-P", "-m", CONTROL]
    command += ["--topology", str(topology), "--state", str(folder.root)]
    with os.fdopen(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "w") as output:
        control = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=output,
            text=True,
            start_new_session=True,
        )
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, lambda *_: control.terminate()) for number in numbers}
    try:
        yield control
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if control.stdout is not None:
            control.stdout.close()


class _View:
    """Prints control's progress."""

    def __init__(self, folder: StateFolder, topology: Path, detach: bool, as_json: bool) -> None:
        self._folder = folder
        self._detach = detach
        self._as_json = as_json
        self._failed = False
        self._stopping = False
        self._say(f"Starting {topology} (state and logs in {folder.root})")

    def follow(self, control: subprocess.Popen[str], lines: IO[str]) -> int:
        """Until it has ended, or with --detach until it is ready; returns our exit code."""
        for line in lines:
            event: Event = json.loads(line)
            self._show(event)
            if event["event"] == "up" and self._detach:
                control.returncode = 0  # it lives on; Popen need not warn about it
                return 0
        code = control.wait()
        if self._failed or code == 0:
            return FAILED if self._failed else (FAILED if self._detach else 0)
        self._complain(code)
        return FAILED

    def _show(self, event: Event) -> None:
        if self._as_json:
            if not self._detach or event["event"] in ("up", "failed"):
                typer.echo(json.dumps(event))
            if event["event"] == "failed":
                self._failed = True
                typer.echo(event["reason"], err=True)
            return
        match event["event"]:
            case "ready":
                self._say(f"  ready    {event['instance']:<16} {event['ms']:>6} ms")
            case "exited" if not self._stopping:
                self._say(f"  ended    {event['instance']:<16} {event['reason']}")
            case "stopped":
                self._say(f"  stopped  {event['instance']}")
            case "up":
                self._say(_welcome(event, self._detach))
            case "stopping":
                self._stopping = True
                self._say("Stopping" if not self._failed else "Stopping what was started")
            case "failed":
                self._failed = True
                typer.echo(event["reason"], err=True)
            case "down" if not self._failed:
                self._say("Stopped.")

    def _complain(self, code: int) -> None:
        how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        lines = "\n".join(tail(self._folder.log("control")))
        message = f"control {how}; `headrace down` ends what still runs\n{lines}"
        typer.echo(message.rstrip(), err=True)
        if self._as_json:
            typer.echo(json.dumps({"event": "failed", "reason": message}))

    def _say(self, text: str) -> None:
        if not self._as_json:
            typer.echo(text)


def _welcome(event: Event, detached: bool) -> str:
    end = "`headrace down` stops it" if detached else "Ctrl-C stops it"
    return (
        f"Ready in {event['ready_s']:.1f} s; {end}.\n"
        f"  NATS  {event['nats']}\n"
        f"  gRPC  {event['grpc']}\n"
        f"  HTTP  http://{event['http']}/v1 (OpenAI-compatible)\n"
        'Try:  headrace ask "Why is the sky blue?"'
    )
