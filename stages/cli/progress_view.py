"""What control tells, as `headrace up` prints it: lines for people or JSON."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import typer

from stages.cli.common import FAILED, hint
from stages.cli.starting import Starting
from stages.control.adoption import find
from stages.control.logs import tail
from stages.control.state import StateFolder

Event = dict[str, Any]

_LOOK_S: Final = 0.05


class View:
    """Follows progress.jsonl."""

    def __init__(self, folder: StateFolder, topology: Path, detach: bool, as_json: bool) -> None:
        self._folder = folder
        self._detach = detach
        self._as_json = as_json
        self._failed = False
        self._stopping = False
        self._down = False
        self._welcomed = False
        self._say(f"Starting {topology} (state and logs in {folder.root})")

    def follow(self, pipeline: Starting) -> int:
        """Until all has ended, or with --detach until it is ready; returns our exit code."""
        for event in self._events(pipeline):
            self._show(event)
            if event["event"] == "up" and self._detach:
                pipeline.leave()
                return 0
        pipeline.settled()
        if pipeline.problem is not None:
            typer.echo(pipeline.problem, err=True)
            return FAILED
        if self._failed:
            return FAILED
        if not self._down and not self._stopping:
            self._complain()
            return FAILED
        return FAILED if self._detach else 0

    def _events(self, pipeline: Starting) -> Iterator[Event]:
        """Whole lines, as they come; control and watchdog may be replaced meanwhile."""
        rest, at = "", 0
        while True:
            over = pipeline.over()  # looked at first: what was told before is still read
            if self._folder.progress.exists():
                with self._folder.progress.open() as file:
                    file.seek(at)
                    rest += file.read()
                    at = file.tell()
            *lines, rest = rest.split("\n")
            yield from (json.loads(line) for line in lines)
            if over:
                return
            time.sleep(_LOOK_S)

    def _show(self, event: Event) -> None:
        match event["event"]:
            case "failed":
                self._failed = True
            case "stopping":
                self._stopping = True
            case "down":
                self._down = True
        if self._as_json:
            if not self._detach or event["event"] in ("up", "failed"):
                typer.echo(json.dumps(event))
            if event["event"] == "failed":
                typer.echo(event["reason"], err=True)
            return
        self._print(event)

    def _print(self, event: Event) -> None:
        match event["event"]:
            case "ready":
                self._say(f"  ready    {event['instance']:<16} {event['ms']:>6} ms")
            case "exited" if not self._stopping:
                self._say(f"  ended    {event['instance']:<16} {event['reason']}")
            case "stopped":
                self._say(f"  stopped  {event['instance']}")
            case "control":
                self._say(f"  control {event['reason']}; again in {event['ms'] / 1000:.1f} s")
            case "taken_over":
                self._say(f"  taken over: {', '.join(event['instances']) or 'nothing'}")
            case "left_over":
                names = ", ".join(event["instances"])
                self._say(f"  ending what is left of another topology: {names}")
            case "applied" | "refused":
                self._say(f"  {event['event']}: {event['reason']}")
            case "up":
                self._say("  control works again" if self._welcomed else self._welcome(event))
                self._welcomed = True
            case "stopping":
                self._say("Stopping what was started" if self._failed else "Stopping")
            case "failed":
                typer.echo(event["reason"], err=True)
            case "down" if not self._failed:
                self._say("Stopped.")

    def _complain(self) -> None:
        left = find(self._folder).living
        lines = "\n".join(tail(self._folder.log("control")))
        rest = (
            f"; {len(left)} processes are left: {hint('up', self._folder)} takes them over, "
            f"{hint('down', self._folder)} ends them"
            if left
            else ""
        )
        message = f"control and its watchdog have ended{rest}\n{lines}".rstrip()
        typer.echo(message, err=True)
        if self._as_json:
            typer.echo(json.dumps({"event": "failed", "reason": message}))

    def _welcome(self, event: Event) -> str:
        end = f"{hint('down', self._folder)} stops it" if self._detach else "Ctrl-C stops it"
        http = f"  HTTP  {event['http']}\n" if event.get("http") else ""
        return (
            f"Ready in {event['ready_s']:.1f} s; {end}.\n"
            f"  NATS  {event['nats']}\n"
            f"  gRPC  {event['grpc']}\n{http}"
            'Try:  headrace ask "Why is the sky blue?"'
        )

    def _say(self, text: str) -> None:
        if not self._as_json:
            typer.echo(text)
