"""Tokens that did not come: asked of the executor, read from the recorder, else made again.

A frame gets lost when the bus restarts, and all that went to an egress that died. What nobody has
any more comes with a new attempt: queueing leases a request again that its executor does not run.
"""

import asyncio
import logging
from typing import Final, Protocol

import nats.errors
from pydantic import ValidationError

from contracts import subjects
from contracts.errors import HeadraceError
from contracts.frames import TokenItem
from contracts.sessions import RepairCall, RepairReply
from stages.egress.live import Live
from stages.egress.output import Step
from stages.egress.recorder import recorded
from stages.egress.session import Phase
from stages.runtime.bus import Bus
from stages.runtime.clock import now_ms

ANSWER_S: Final = 1.0
PAUSE_S: Final = 0.25
SLOW_AFTER: Final = 8  # tries; then once a second until the gap is closed or the session ends
SLOW_PAUSE_S: Final = 1.0
RECORDER_TRIES: Final = (0, 4)
READERS: Final = 2  # at once: one reading can be some megabytes
SLACK_MS: Final = 2_000.0  # clocks of two processes, and frames on their way

log = logging.getLogger("headrace.egress")


class Apply(Protocol):
    """Carries out what a session's step says."""

    async def __call__(self, live: Live, step: Step) -> None:
        """Chunk and end."""


class Mending:
    """Fills gaps of sessions of this egress (`egress` is our incarnation)."""

    def __init__(self, bus: Bus, egress: str, apply: Apply) -> None:
        self._bus = bus
        self._egress = egress
        self._apply = apply
        self._reading = asyncio.Semaphore(READERS)

    async def run(self, live: Live) -> None:
        """Until nothing is missing and, with `live.take_over`, its executor sends to us."""
        if live.mending:
            return
        live.mending = True
        try:
            tries = 0
            while live.session.phase is not Phase.CLOSED and _wanting(live):
                if tries:
                    await asyncio.sleep(PAUSE_S if tries < SLOW_AFTER else SLOW_PAUSE_S)
                await self._try(live, tries)
                tries += 1
        finally:
            live.mending = False

    async def _try(self, live: Live, tries: int) -> None:
        attempt = live.session.assembly.attempt
        if await self._from_executor(live):
            return
        if tries in RECORDER_TRIES:
            async with self._reading:
                await self._from_recorder(live)
        if live.executor is None or live.session.assembly.attempt > attempt:
            live.take_over = False  # a lease that comes from now on names us by itself

    async def _from_executor(self, live: Live) -> bool:
        """Whether it has answered with what it has made."""
        session = live.session
        if live.executor is None:
            return False
        call = RepairCall(
            request_id=session.request_id,
            offset=len(session.assembly.ids),
            egress=self._egress if live.take_over else None,
        )
        try:
            reply = await self._bus.request(
                subjects.repair(live.executor), call, RepairReply, ANSWER_S
            )
        except (HeadraceError, ValidationError, OSError, nats.errors.Error) as error:
            log.info("no tokens of %s from %s: %s", session.request_id, live.executor, error)
            return False
        if live.take_over and call.egress is not None:
            live.take_over, live.recorded_at = False, None
        now = now_ms()
        await self._apply(live, session.take(_item(reply), now, now))
        return True

    async def _from_recorder(self, live: Live) -> None:
        session = live.session
        since = session.moments.last_sent or session.moments.received
        where = live.recorded_at or self._egress
        async for frame in recorded(self._bus, where, since - SLACK_MS):
            for item in frame.items:
                if item.request_id == session.request_id and session.phase is not Phase.CLOSED:
                    step = session.take(item, frame.sent_ms, now_ms())
                    await self._apply(live, step)


def _wanting(live: Live) -> bool:
    return live.take_over or live.session.assembly.gap


def _item(reply: RepairReply) -> TokenItem:
    return TokenItem(
        request_id=reply.request_id,
        attempt=reply.attempt,
        offset=reply.offset,
        ids=reply.ids,
        accelerator_us=reply.accelerator_us,
        cached_tokens=reply.cached_tokens,
        started_ms=reply.started_ms,
        finish=reply.finish,
        error=reply.error,
        fingerprint=reply.fingerprint,
    )
