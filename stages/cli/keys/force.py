"""Bringing a changed file into force in the pipeline that runs in a state folder."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from typing import Final

import nats.errors
from nats.aio.msg import Msg

from contracts import subjects
from contracts.errors import ErrorInfo, HeadraceError
from contracts.lifecycle import ApplyCall, ApplyEvent, Generation
from stages.cli.keys.file import Document, KeysError, other_than_tenants
from stages.control.generations import Generations
from stages.control.state import StateFolder
from stages.runtime.bus import ERROR_HEADER, Bus

CONNECT_S: Final = 3.0
SILENCE_S: Final = 5.0  # control says at least one word a second
LIMIT_S: Final = 60.0
PAUSE_S: Final = 0.2


class BusyError(KeysError):
    """Another change is being made, or control is being restarted: to be tried again."""


@contextlib.asynccontextmanager
async def pipeline(folder: StateFolder) -> AsyncIterator[Bus | None]:
    """The bus of what runs in the folder; None when nothing does. Raises `KeysError`."""
    address = folder.read_bus() if folder.holding_ports() is not None else None
    if address is None:
        yield None
        return
    try:
        bus = await asyncio.wait_for(Bus.connect(address, "headrace-keys"), CONNECT_S)
    except (OSError, TimeoutError, nats.errors.Error) as error:
        raise KeysError(
            f"a pipeline is in {folder.root}, but its bus does not answer ({error!r}); see "
            "`headrace status`, or give --no-apply to change the file only"
        ) from None
    try:
        yield bus
    except HeadraceError as error:
        raise KeysError(error.info.message) from None
    finally:
        await bus.close()


async def running(bus: Bus) -> Generation:
    """The generation that serves. Raises `KeysError`."""
    spec = await Generations(bus).spec()
    if spec is None:
        raise KeysError("the pipeline is still starting; try again when it is ready")
    return spec.generation


async def check(bus: Bus, document: Document) -> None:
    """Raises `KeysError` where the file says more than new keys."""
    serving = await running(bus)
    if other_than_tenants(document.topology, serving.topology):
        raise KeysError(
            f"{document.path} also has other changes than keys, which do not run yet (see "
            "`headrace plan`): bring them into force first with `headrace apply`, or give "
            "--no-apply to change the file only"
        )


async def apply(bus: Bus, document: Document) -> int:
    """Returns the generation in which the file is in force. Raises `KeysError`."""
    until = time.monotonic() + LIMIT_S
    while True:
        try:
            serving = await running(bus)
            return await _ask(bus, document, serving.generation)
        except BusyError:
            if time.monotonic() > until:
                raise
            await asyncio.sleep(PAUSE_S)


async def _ask(bus: Bus, document: Document, base: int) -> int:
    """One attempt."""
    said: asyncio.Queue[Msg] = asyncio.Queue()
    inbox = bus.client.new_inbox()
    subscription = await bus.listen(inbox, said.put_nowait)
    call = ApplyCall(text=document.text, file=str(document.path), base=base, reason="keys")
    try:
        await bus.publish(subjects.APPLY, call, reply=inbox)
        while True:
            event = await _next(said)
            if event.event == "done":
                return event.generation
            if event.event == "failed":
                busy = "one change at a time" in event.text or f"generation {base}" in event.text
                kind = BusyError if busy else KeysError
                raise kind(f"it is not in force: {event.text}")
    finally:
        await subscription.unsubscribe()


async def _next(said: asyncio.Queue[Msg]) -> ApplyEvent:
    try:
        async with asyncio.timeout(SILENCE_S):
            msg = await said.get()
    except TimeoutError:
        raise KeysError(
            "it is not in force: control stopped answering; see `headrace status`"
        ) from None
    headers = msg.headers or {}
    if headers.get("Status") == "503":
        raise BusyError("it is not in force: control is away (it is restarted); try again")
    if ERROR_HEADER in headers:
        raise KeysError(f"it is not in force: {ErrorInfo.model_validate_json(msg.data).message}")
    return ApplyEvent.model_validate_json(msg.data)
