"""`hr.control.apply`: a change is asked for, its steps are told as they happen."""

import asyncio
import contextlib
from typing import Final, Literal

import nats.errors
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from contracts import subjects
from contracts.errors import ErrorCode, HeadraceError
from contracts.lifecycle import ApplyCall, ApplyEvent
from stages.control.change import Changer
from stages.control.generations import Generations
from stages.runtime.bus import Bus

_WORKING_S: Final = 1.0


class ApplyDoor:
    """Answers with several events; a caller that leaves does not stop the change."""

    def __init__(self, bus: Bus, changer: Changer, generations: Generations) -> None:
        self._bus = bus
        self._changer = changer
        self._generations = generations
        self._changes: set[asyncio.Task[str]] = set()
        self._serving_calls: Subscription | None = None

    async def start(self) -> None:
        """Take calls."""
        self._serving_calls = await self._bus.serve(subjects.APPLY, ApplyCall, self._on_call)

    async def stop(self) -> None:
        """Take none any more and leave the one in progress where it is (the next start repairs)."""
        if self._serving_calls is not None:
            with contextlib.suppress(OSError, TimeoutError, nats.errors.Error):
                await self._serving_calls.unsubscribe()
        for change in self._changes:
            change.cancel()
        if self._changes:
            await asyncio.wait(self._changes, timeout=1.0)

    async def _on_call(self, call: ApplyCall, msg: Msg) -> None:
        serving = await self._serving()
        steps: asyncio.Queue[str] = asyncio.Queue()
        loop = asyncio.get_running_loop()
        change = loop.create_task(self._changer.apply(call, steps.put_nowait))
        self._changes.add(change)
        change.add_done_callback(self._changes.discard)
        try:
            while not (change.done() and steps.empty()):
                await self._next(change, steps, msg.reply, serving)
            if change.cancelled():
                raise HeadraceError(ErrorCode.SHUTTING_DOWN, "control is being stopped")
            text = change.result()
        except HeadraceError as error:
            serving = await self._serving()
            text = f"{error}; generation {serving} serves"
            await self._say(msg.reply, "failed", text, serving)
        else:
            await self._say(msg.reply, "done", text, await self._serving())

    async def _next(
        self, change: asyncio.Task[str], steps: asyncio.Queue[str], reply: str, serving: int
    ) -> None:
        """Tell the next step, or after a second that it goes on."""
        step = asyncio.get_running_loop().create_task(steps.get())
        try:
            done, _ = await asyncio.wait(
                {step, change}, timeout=_WORKING_S, return_when=asyncio.FIRST_COMPLETED
            )
            if step in done:
                await self._say(reply, "step", step.result(), serving)
            elif not done:
                await self._say(reply, "working", self._changer.doing or "", serving)
        finally:
            if not step.done():
                step.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await step

    async def _say(
        self,
        reply: str,
        event: Literal["step", "working", "done", "failed"],
        text: str,
        generation: int,
    ) -> None:
        if reply:
            said = ApplyEvent(event=event, text=text, generation=generation)
            await self._bus.publish(reply, said)

    async def _serving(self) -> int:
        found = await self._generations.spec()
        return 0 if found is None else found.generation.generation
