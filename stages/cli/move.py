"""`headrace move`: waiting requests to another pool of the same model."""

import asyncio
from typing import Annotated, Final

import nats.errors
import typer

from contracts import subjects
from contracts.errors import HeadraceError
from contracts.internal import MoveCall, MoveReply
from stages.cli.common import (
    FAILED,
    NOT_RUNNING,
    OK,
    STATE,
    JsonOption,
    StateOption,
    fail,
    hint,
    print_json,
)
from stages.control.state import StateFolder
from stages.runtime.bus import Bus, UnansweredError, UnservedError
from stages.runtime.launch import BusAddress

ASK_S: Final = 30.0
SHOWN: Final = 20


def move(
    source: Annotated[str, typer.Option("--from", metavar="POOL", help="Where they wait.")],
    target: Annotated[str, typer.Option("--to", metavar="POOL", help="Where they shall run.")],
    requests: Annotated[
        list[str] | None,
        typer.Argument(metavar="REQUEST", help="Which ones; none named = all that wait."),
    ] = None,
    state: StateOption = STATE,
    as_json: JsonOption = False,
) -> None:
    """Move requests that wait to another pool of the same model; what runs stays.

    Exit code 0 when nothing that was asked for stayed, 1 when something did or the call was refused,
    3 when the pipeline does not run.
    """
    for pool in (source, target):
        if not subjects.is_name(pool):
            raise fail(f"{pool!r} is not a name of a pool", as_json)
    folder = StateFolder(state)
    address = folder.read_bus()
    if address is None:
        raise fail(
            f"not running in {folder.root}; start it with {hint('up', folder)}",
            as_json,
            NOT_RUNNING,
        )
    call = MoveCall(to=target, request_ids=requests or None)
    try:
        reply = asyncio.run(_ask(address, source, call))
    except UnservedError:
        raise fail(
            f"nobody serves a queue of pool {source!r}; {hint('status', folder)} lists the pools",
            as_json,
        ) from None
    except UnansweredError:
        raise fail(
            f"the queue of pool {source!r} did not answer in {ASK_S:.0f} s; what was moved stays "
            f"moved, look with {hint('status', folder)}",
            as_json,
        ) from None
    except HeadraceError as error:
        raise fail(error.info.message, as_json) from None
    except (OSError, TimeoutError, nats.errors.Error) as error:
        raise fail(f"the message bus cannot be reached: {error!r}", as_json, NOT_RUNNING) from None
    _say(reply, source, target, as_json)
    raise typer.Exit(FAILED if reply.stayed else OK)


async def _ask(address: BusAddress, source: str, call: MoveCall) -> MoveReply:
    bus = await Bus.connect(address, "headrace-move")
    try:
        return await bus.request(subjects.move(source), call, MoveReply, ASK_S)
    finally:
        await bus.close()


def _say(reply: MoveReply, source: str, target: str, as_json: bool) -> None:
    if as_json:
        print_json(reply.model_dump())
        return
    typer.echo(f"{len(reply.moved)} moved from {source} to {target}, {len(reply.stayed)} stayed")
    for request_id, why in list(reply.stayed.items())[:SHOWN]:
        typer.echo(f"  {request_id}: {why}")
    if len(reply.stayed) > SHOWN:
        typer.echo(f"  and {len(reply.stayed) - SHOWN} more")
