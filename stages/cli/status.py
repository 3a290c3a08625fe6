"""`headrace status`: the pipeline at one glance, what is wrong first."""

import asyncio
import time
from typing import Annotated, Final

import nats.errors
import typer
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from contracts import subjects
from contracts.errors import HeadraceError
from contracts.status import Conservation, ProcessStatus, StatusCall, StatusReport
from stages.cli.common import FAILED, NOT_RUNNING, OK, STATE, JsonOption, StateOption, fail
from stages.control.state import StateFolder
from stages.runtime.bus import Bus

_ANSWER_S: Final = 2.0
_COLOURS: Final = {"ready": "green", "crash_loop": "red", "backoff": "red", "silent": "red"}


def status(
    state: StateOption = STATE,
    as_json: JsonOption = False,
    watch: Annotated[bool, typer.Option("--watch", help="Show again every second.")] = False,
) -> None:
    """Show stages, executors, queue and the conservation law; what is wrong comes first.

    Exit code 0 when all is well, 1 when something is wrong, 3 when nothing runs.
    """
    folder = StateFolder(state)
    console = Console()
    while True:
        report = _ask(folder, as_json)
        if as_json:
            typer.echo(report.model_dump_json(indent=1))
        else:
            if watch:
                console.clear()
            console.print(render(report))
        if not watch:
            raise typer.Exit(OK if report.healthy else FAILED)
        time.sleep(1.0)


def _ask(folder: StateFolder, as_json: bool) -> StatusReport:
    known = folder.read()
    if known is None:
        raise fail(
            f"not running in {folder.root}; start it with `headrace up`", as_json, NOT_RUNNING
        )
    if not known.control.alive:
        left = known.leftovers()
        code = FAILED if left else NOT_RUNNING
        rest = f"; {len(left)} processes are left, `headrace down` ends them" if left else ""
        raise fail(f"control is not running in {folder.root}{rest}", as_json, code)
    try:
        return asyncio.run(_request(folder))
    except (OSError, TimeoutError, nats.errors.Error, HeadraceError) as error:
        said = str(error) or type(error).__name__
        raise fail(
            f"control runs (pid {known.control.pid}) but does not answer: {said}; "
            f"its log is {folder.log('control')}",
            as_json,
        ) from None


async def _request(folder: StateFolder) -> StatusReport:
    address = folder.read_bus()
    if address is None:
        raise OSError("it is still starting")
    bus = await Bus.connect(address, "headrace-status")
    try:
        return await bus.request(subjects.STATUS, StatusCall(), StatusReport, _ANSWER_S)
    finally:
        await bus.close()


def render(report: StatusReport) -> RenderableType:
    """The report for a terminal."""
    parts: list[RenderableType] = [_headline(report)]
    parts += [Text(f"  ✗ {problem}", style="red") for problem in report.problems]
    parts.append(_table(report))
    if report.conservation is not None:
        parts.append(_law(report.conservation))
    doors = report.addresses
    told = f"NATS {doors.nats}   gRPC {doors.grpc}   HTTP http://{doors.http}/v1"
    parts.append(Text(told, style="dim"))
    return Group(*parts)


def _headline(report: StatusReport) -> Text:
    up_s = (report.sent_ms - report.started_ms) / 1000
    state = Text("healthy", "green") if report.healthy else Text("something is wrong", "bold red")
    return Text.assemble(
        state, f"   generation {report.generation}   up {_span(up_s)}   {report.topology_file}"
    )


def _table(report: StatusReport) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in ("process", "state", "pid", "up", "ready in", "restarts", "now"):
        right = name in ("pid", "up", "ready in", "restarts")
        table.add_column(name, justify="right" if right else "left", header_style="dim")
    for one in (report.bus, *report.stages, *report.executors):
        table.add_row(
            one.instance,
            Text(one.phase.replace("_", " "), _COLOURS.get(one.phase, "yellow")),
            str(one.pid or ""),
            _span(one.uptime_s) if one.uptime_s is not None else "",
            f"{one.startup_ms:.0f} ms" if one.startup_ms is not None else "",
            str(one.restarts),
            _now(one),
        )
    return table


def _now(one: ProcessStatus) -> str:
    """The two or three figures worth a glance."""
    if one.pool is not None:
        running = one.counters.get("num_requests_running", 0)
        device = one.detail.get("device", "")
        return f"{running:.0f} running  {device}".strip()
    if one.stage == "queueing":
        return f"{one.counters.get('queued', 0):.0f} queued"
    return ""


def _law(law: Conservation) -> Text:
    parts = " + ".join(
        f"{getattr(law, name)} {name}"
        for name in ("finished", "cancelled", "failed", "expired", "running", "queued")
    )
    verdict = ("balanced", "green") if law.balanced else ("NOT balanced", "bold red")
    return Text.assemble(f"{law.accepted} accepted = {parts}   ", verdict)


def _span(seconds: float) -> str:
    whole = int(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
