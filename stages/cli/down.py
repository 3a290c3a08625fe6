"""`headrace down`: ask control to stop, wait, and end whatever is left."""

import asyncio
import signal
import time
from typing import Final

import typer

from stages.cli.common import FAILED, OK, STATE, JsonOption, StateOption, fail, print_json
from stages.control.leftovers import CannotEndError, end_leftovers
from stages.control.order import STOP_S
from stages.control.process import KILL_S
from stages.control.state import RunState, StateFolder

_WAIT_S: Final = STOP_S + 10.0  # each phase may settle for 2.5 s when the bus is gone


def down(state: StateOption = STATE, as_json: JsonOption = False) -> None:
    """Stop the pipeline: no new requests, running ones finish, usage is stored.

    Exit code 0 when nothing runs afterwards, also when nothing ran before.
    """
    folder = StateFolder(state)
    before = folder.read()
    running = folder.running()
    if running is not None and not as_json:
        typer.echo(f"Stopping the pipeline in {folder.root}")
    clean = running is None or _stop(running)
    try:
        ended = asyncio.run(end_leftovers(folder)) if before is not None else 0
    except CannotEndError as error:
        raise fail(str(error), as_json) from None
    if folder.running() is None and before is not None:
        folder.clear()
    if as_json:
        print_json({"was_running": running is not None, "clean": clean, "left_over": ended})
    else:
        typer.echo(_said(running is not None, clean, ended))
    still = folder.running()
    if still is not None:
        typer.echo(
            f"Control (pid {still.control.pid}) did not end {KILL_S:.0f} s after SIGKILL; "
            "the kernel holds it",
            err=True,
        )
    raise typer.Exit(OK if still is None else FAILED)


def _stop(running: RunState) -> bool:
    """Whether control ended by itself; it is killed when it does not."""
    control = running.control
    for number, wait_s in ((signal.SIGTERM, _WAIT_S), (signal.SIGKILL, KILL_S)):
        control.send(number)
        deadline = time.monotonic() + wait_s
        while control.alive and time.monotonic() < deadline:
            time.sleep(0.02)
        if not control.alive:
            break
    return number == signal.SIGTERM


def _said(was_running: bool, clean: bool, ended: int) -> str:
    if not was_running:
        return (
            f"Not running; {ended} process(es) left over were ended." if ended else "Not running."
        )
    return "Stopped." if clean else f"Control did not answer and was killed, with {ended} others."
