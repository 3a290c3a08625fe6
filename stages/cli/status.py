"""`headrace status`: the pipeline at one glance, what is wrong first."""

import asyncio
import time
from collections.abc import Sequence
from typing import Annotated, Final

import nats.errors
import typer
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from contracts import subjects
from contracts.errors import HeadraceError
from contracts.status import Conservation, ProcessStatus, QueueStatus, StatusCall, StatusReport
from stages.cli.common import FAILED, NOT_RUNNING, OK, STATE, JsonOption, StateOption, fail, hint
from stages.control.adoption import find
from stages.control.report import watchdog_note
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
    control = folder.holder("control")
    if control is None:
        said, code = _without_control(folder)
        raise fail(said, as_json, code)
    try:
        return asyncio.run(_request(folder))
    except (OSError, TimeoutError, nats.errors.Error, HeadraceError) as error:
        said = str(error) or type(error).__name__
        raise fail(
            f"control runs (pid {control.pid}) but does not answer: {said}; "
            f"its log is {folder.log('control')}",
            as_json,
        ) from None


def _without_control(folder: StateFolder) -> tuple[str, int]:
    """What the files tell when control does not run, and the exit code for it."""
    left = find(folder).living
    watchdog = folder.holder("watchdog")
    if watchdog is not None:
        note = watchdog_note(folder)
        why = f": {note.last_error} ({note.restarts} times so far)" if note.restarts else ""
        return f"control is being started by its watchdog (pid {watchdog.pid}){why}", FAILED
    if left:
        return (
            f"control is not running in {folder.root}; {len(left)} processes are left: "
            f"{hint('up', folder)} takes them over, {hint('down', folder)} ends them"
        ), FAILED
    return f"not running in {folder.root}; start it with {hint('up', folder)}", NOT_RUNNING


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
    """The report for a terminal of 80 columns or more."""
    parts: list[RenderableType] = [_headline(report)]
    parts += [Text(f"  ✗ {problem}", style="red") for problem in report.problems]
    notes = (report.change and f"changing: {report.change}", report.drift, *report.astray)
    parts += [Text(f"  ! {note}", style="yellow") for note in notes if note]
    parts.append(_table(report))
    parts += [_queue(one) for one in report.queues]
    if report.conservation is not None:
        parts.append(_law(report.conservation))
    parts += [Text(line, style="dim") for line in identities(report.executors)]
    parts.append(Text(_supervision(report), style="dim"))
    parts.append(Text(_addresses(report), style="dim"))
    parts.append(Text(f"topology {report.topology_file}", style="dim"))
    return Group(*parts)


def _headline(report: StatusReport) -> Text:
    up_s = (report.sent_ms - report.started_ms) / 1000
    state = Text("healthy", "green") if report.healthy else Text("something is wrong", "bold red")
    return Text.assemble(state, f"   generation {report.generation}   up {_span(up_s)}")


def _table(report: StatusReport) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in ("process", "state", "gen", "pid", "up", "restarts", "now"):
        right = name in ("gen", "pid", "up", "restarts")
        table.add_column(name, justify="right" if right else "left", header_style="dim")
    for one in (report.bus, *report.stages, *report.executors):
        late = one.generation is not None and one.generation != report.generation
        table.add_row(
            one.instance,
            Text(one.phase.replace("_", " "), _COLOURS.get(one.phase, "yellow")),
            Text(str(one.generation or ""), "yellow" if late else ""),
            str(one.pid or ""),
            _span(one.uptime_s) if one.uptime_s is not None else "",
            str(one.restarts),
            _now(one, report),
        )
    return table


def _now(one: ProcessStatus, report: StatusReport) -> str:
    """The two or three facts worth a glance."""
    if one.pool is not None:
        return f"{one.counters.get('num_requests_running', 0):.0f} running"
    if one.stage == "queueing":
        owned = [queue.pool for queue in report.queues if queue.owner == one.incarnation]
        owner = f"owns {', '.join(owned)}" if owned else "standby" if report.queues else ""
        return ", ".join(
            part for part in (f"{one.counters.get('queued', 0):.0f} queued", owner) if part
        )
    return ""


def identities(executors: Sequence[ProcessStatus]) -> list[str]:
    """Device, share of the machine, zone and model of executors; those that are alike in one line."""
    alike: dict[str, list[str]] = {}
    for one in executors:
        said = one.detail
        parts = [said["device"]] if said.get("device") else []
        parts += [f"fraction {said['fraction']}"] if "fraction" in said else []
        parts += [f"zone {said['zone']}"] if "zone" in said else []
        parts += [f"fingerprint {said['fingerprint'][:12]}"] if said.get("fingerprint") else []
        if parts:
            alike.setdefault(", ".join(parts), []).append(one.instance)
    return [f"{', '.join(names)}: {what}" for what, names in alike.items()]


def _queue(one: QueueStatus) -> Text:
    if one.owner is None:
        return Text(f"queue {one.pool}: nobody owns it", "red")
    standby = f", standby {', '.join(one.standby)}" if one.standby else ", no standby"
    return Text(f"queue {one.pool}: {one.owner}, epoch {one.epoch}{standby}")


def _law(law: Conservation) -> Text:
    """What is zero is left out."""
    names = ("finished", "cancelled", "failed", "expired", "running", "queued")
    parts = [f"{getattr(law, name)} {name}" for name in names if getattr(law, name)]
    verdict = ("balanced", "green") if law.balanced else ("NOT balanced", "bold red")
    return Text.assemble(f"{law.accepted} accepted = {' + '.join(parts) or '0'}   ", verdict)


def _supervision(report: StatusReport) -> str:
    control = f"control {report.pid}, restarted {report.control.restarts} times"
    if report.control.last_error:
        control += f" ({report.control.last_error.partition(';')[0]})"
    if report.watchdog is None:
        return f"{control}   no watchdog"
    return f"{control}   watchdog {report.watchdog.pid or 'none'}"


def _addresses(report: StatusReport) -> str:
    where = report.addresses
    parts = (("NATS", where.nats), ("gRPC", where.grpc), ("HTTP", where.http))
    return "   ".join(f"{name} {address}" for name, address in parts if address)


def _span(seconds: float) -> str:
    whole = int(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
