"""`headrace down`: ask control to stop, wait, and end whatever is left."""

import typer

from stages.cli.common import FAILED, OK, STATE, JsonOption, StateOption, fail, plural, print_json
from stages.control.ending import Ended, end_pipeline
from stages.control.leftovers import CannotEndError
from stages.control.process import KILL_S
from stages.control.state import StateFolder


def down(state: StateOption = STATE, as_json: JsonOption = False) -> None:
    """Stop the pipeline: no new requests, running ones finish, usage is stored.

    Exit code 0 when nothing runs afterwards, also when nothing ran before. A second `down` waits with
    the first.
    """
    folder = StateFolder(state)
    if folder.looked_after() and not as_json:
        typer.echo(f"Stopping the pipeline in {folder.root}")
    try:
        ended = end_pipeline(folder)
    except CannotEndError as error:
        raise fail(str(error), as_json) from None
    if as_json:
        print_json(
            {
                "was_running": ended.was_running,
                "clean": ended.clean,
                "left_over": ended.left_over,
            }
        )
    else:
        typer.echo(_said(ended))
    if ended.still is not None:
        typer.echo(
            f"Control or its watchdog (pid {ended.still.pid}) did not end {KILL_S:.0f} s after "
            "SIGKILL; the kernel holds it",
            err=True,
        )
    raise typer.Exit(OK if ended.still is None else FAILED)


def _said(ended: Ended) -> str:
    if not ended.was_running:
        if ended.left_over:
            return f"Not running; {plural(ended.left_over, 'process')} left over: ended."
        return "Not running."
    if not ended.clean:
        others = plural(ended.left_over, "other process")
        return f"Control did not answer and was killed, with {others}."
    if ended.left_over:
        return f"Stopped; {plural(ended.left_over, 'process')} ended without control."
    return "Stopped."
