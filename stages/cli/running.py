"""A pipeline that runs, as commands see it: its bus, its generations, changes asked of control."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final, TypeVar

import nats.errors
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from contracts import subjects
from contracts.errors import ErrorCode, ErrorInfo, HeadraceError
from contracts.lifecycle import ApplyCall, ApplyEvent, Generation
from contracts.status import StatusCall, StatusReport
from stages.cli.common import FAILED, NOT_RUNNING, fail, hint
from stages.control.generations import Generations
from stages.control.state import RunState, StateFolder
from stages.runtime.bus import ERROR_HEADER, Bus

SILENT_S: Final = 15.0  # control says something each second
ANSWER_S: Final = 5.0

T = TypeVar("T")
Show = Callable[[ApplyEvent], None]


def need_running(folder: StateFolder, as_json: bool) -> RunState:
    """What runs there; ends the command when nothing does."""
    known = folder.read()
    if known is None:
        raise fail(
            f"nothing runs in {folder.root}; start it with {hint('up', folder)}",
            as_json,
            NOT_RUNNING,
        )
    return known


@asynccontextmanager
async def on_bus(folder: StateFolder) -> AsyncIterator[Bus]:
    """Connected as the owner of the state folder."""
    address = folder.read_bus()
    if address is None:
        raise OSError("it is still starting")
    bus = await Bus.connect(address, "headrace-cli")
    try:
        yield bus
    finally:
        await bus.close()


def run(folder: StateFolder, as_json: bool, work: Callable[[Bus], Awaitable[T]]) -> T:
    """Do something on the bus; what goes wrong ends the command with one message."""

    async def connected() -> T:
        async with on_bus(folder) as bus:
            return await work(bus)

    try:
        return asyncio.run(connected())
    except HeadraceError as error:
        raise fail(str(error), as_json, FAILED) from None
    except (OSError, TimeoutError, nats.errors.Error) as error:
        said = str(error) or type(error).__name__
        raise fail(f"the bus of {folder.root} does not answer: {said}", as_json, FAILED) from None


async def serving(bus: Bus) -> Generation:
    """The generation that serves. Raises `HeadraceError`."""
    found = await Generations(bus).spec()
    if found is None:
        raise HeadraceError(ErrorCode.NOT_FOUND, "no generation is stored yet; try again")
    return found.generation


async def status_of(bus: Bus) -> StatusReport | None:
    """What control says; None while it does not answer."""
    try:
        return await bus.request(subjects.STATUS, StatusCall(), StatusReport, ANSWER_S)
    except HeadraceError:
        return None


async def ask_apply(bus: Bus, call: ApplyCall, show: Show) -> ApplyEvent:
    """Have control make a change; its steps go to `show`, the last event is returned.

    Raises `HeadraceError` when the change is refused at once or control falls silent.
    """
    inbox = bus.client.new_inbox()
    answers = await bus.client.subscribe(inbox)
    try:
        await bus.publish(subjects.APPLY, call, reply=inbox)
        while True:
            event = _event(await _next(answers))
            show(event)
            if event.event in ("done", "failed"):
                return event
    finally:
        await answers.unsubscribe()


async def _next(answers: Subscription) -> Msg:
    try:
        return await answers.next_msg(SILENT_S)
    except (TimeoutError, nats.errors.TimeoutError):
        raise HeadraceError(
            ErrorCode.DEADLINE_EXCEEDED,
            f"control has said nothing for {SILENT_S:.0f} s; `headrace status` and "
            "`headrace history` show what became of the change",
        ) from None


def _event(msg: Msg) -> ApplyEvent:
    headers = msg.headers or {}
    if headers.get("Status") == "503":
        raise HeadraceError(ErrorCode.NO_CAPACITY, "control does not run now; try again")
    if ERROR_HEADER in headers:
        info = ErrorInfo.model_validate_json(msg.data)
        raise HeadraceError(info.code, info.message)
    return ApplyEvent.model_validate_json(msg.data)
