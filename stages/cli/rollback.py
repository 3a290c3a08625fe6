"""`headrace rollback`: an earlier generation's text becomes a new generation."""

import os
from pathlib import Path
from typing import Annotated

import typer

from contracts.lifecycle import ApplyCall, Change, Generation
from stages.cli.apply import make
from stages.cli.common import OK, STATE, JsonOption, StateOption, fail
from stages.cli.history import read_history
from stages.cli.plan import Seen, look
from stages.cli.running import need_running, run
from stages.control.state import StateFolder
from stages.runtime.bus import Bus


def rollback(
    generation: Annotated[
        int | None, typer.Argument(help="Which; default: the one before, further with each call.")
    ] = None,
    state: StateOption = STATE,
    write: Annotated[
        bool, typer.Option("--write", help="Also write its text to the topology file.")
    ] = False,
    with_keys: Annotated[
        bool, typer.Option("--with-keys", help="Also let keys in again that were taken out since.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Go back to an earlier generation (`headrace history`), as a change like any other.

    API keys that were taken out since then would work again: that is refused without --with-keys.
    The file keeps what it says unless --write is given. Exit codes as of `headrace apply`.
    """
    folder = StateFolder(state)
    known = need_running(folder, as_json)

    async def read(bus: Bus) -> tuple[Seen, list[Generation]]:
        return await look(bus), await read_history(bus)

    seen, kept = run(folder, as_json, read)
    try:
        target = choose(kept, seen.generation, generation)
    except LookupError as error:
        raise fail(str(error), as_json) from None
    changes = seen.changes(target.topology)
    back = returning_keys(changes)
    if back and not with_keys:
        raise fail(
            f"API keys that were taken out would work again: {', '.join(back)}; "
            "give --with-keys if that is wanted",
            as_json,
        )
    call = ApplyCall(
        text=target.text,
        file=f"generation {target.generation}",
        base=seen.generation.generation,
        reason="rollback",
        undoes=target.generation,
    )
    code = make(folder, call, changes, as_json)
    if code == OK:
        _settle_file(Path(known.topology_file), target, write, as_json)
    raise typer.Exit(code)


def choose(kept: list[Generation], now: Generation, wanted: int | None) -> Generation:
    """The generation to go back to. Raises `LookupError` with what to do.

    Without a number it is the one before; after a rollback, the one before that it went to.
    """
    if wanted is None:
        came_from = now.generation if now.undoes is None else now.undoes
        earlier = [one for one in kept if one.generation < came_from]
        if not earlier:
            raise LookupError(f"there is no generation before {came_from}")
        return earlier[-1]
    for one in kept:
        if one.generation == wanted:
            return one
    known = ", ".join(str(one.generation) for one in kept)
    raise LookupError(f"generation {wanted} is not kept; known: {known}")


def returning_keys(changes: list[Change]) -> list[str]:
    """Keys that a change would let in, as `tenant key-id`."""
    found = []
    for one in changes:
        parts = one.path.split(".")
        if one.kind == "remove" or parts[0] != "tenants":
            continue
        if len(parts) > 3 and parts[2] == "keys":
            found.append(f"{parts[1]} {parts[3]}")
        elif one.kind == "add" and one.after and "keys: {}" not in one.after:
            found.append(f"{parts[1]} (whole tenant)")
    return found


def _settle_file(file: Path, target: Generation, write: bool, as_json: bool) -> None:
    if write:
        _replace(file, target.text)
    elif not as_json:
        typer.echo(f"{file} was left as it is; --write would make it say the same")


def _replace(file: Path, text: str) -> None:
    """Atomically, with the mode it had; what a link points to, not the link."""
    file = file.resolve()
    draft = file.with_name(f".{file.name}.{os.getpid()}")
    draft.write_text(text)
    if file.exists():
        draft.chmod(file.stat().st_mode & 0o7777)
    draft.replace(file)
