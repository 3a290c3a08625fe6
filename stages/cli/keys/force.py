"""Bringing a changed file into force in the pipeline that runs in a state folder."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from typing import Final

import nats.errors

from contracts.errors import ErrorCode, HeadraceError
from contracts.lifecycle import ApplyCall, ApplyEvent
from stages.cli.common import hint
from stages.cli.keys.file import Document, KeysError, other_than_tenants
from stages.cli.running import ask_apply, serving
from stages.control.state import StateFolder
from stages.runtime.bus import Bus

CONNECT_S: Final = 3.0
LIMIT_S: Final = 60.0
PAUSE_S: Final = 0.2


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
            f"{hint('status', folder)}, or give --no-apply to change the file only"
        ) from None
    try:
        yield bus
    except HeadraceError as error:
        raise KeysError(error.info.message) from None
    finally:
        await bus.close()


async def check(bus: Bus, document: Document, folder: StateFolder) -> None:
    """Raises `KeysError` where the file says more than new keys."""
    now = await serving(bus)
    if other_than_tenants(document.topology, now.topology):
        raise KeysError(
            f"{document.path} also has other changes than keys, which do not run yet (see "
            f"{hint('plan', folder)}): bring them into force first with {hint('apply', folder)}, or give "
            "--no-apply to change the file only"
        )


async def apply(bus: Bus, document: Document) -> int:
    """Returns the generation in which the file is in force. Raises `KeysError`."""
    until = time.monotonic() + LIMIT_S
    while True:
        try:
            base = (await serving(bus)).generation
            call = ApplyCall(text=document.text, file=str(document.path), base=base, reason="keys")
            end = await ask_apply(bus, call, _quietly)
        except HeadraceError as error:
            if error.info.code is not ErrorCode.NO_CAPACITY or time.monotonic() > until:
                raise KeysError(f"it is not in force: {error.info.message}") from None
        else:
            if end.event == "done":
                return end.generation
            # Somebody else's change came first, perhaps `up --watch` with just this text.
            busy = "one change at a time" in end.text or "was made for generation" in end.text
            if not busy or time.monotonic() > until:
                raise KeysError(f"it is not in force: {end.text}")
        await asyncio.sleep(PAUSE_S)


def _quietly(_: ApplyEvent) -> None:
    """A key is not worth a line a step."""
