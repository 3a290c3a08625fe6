"""All sessions of this process: opens, moves and closes them, and keeps their time."""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass

from contracts.client import Accepted, FinishReason, Queued
from contracts.errors import ErrorCode, ErrorInfo, HeadraceError
from contracts.frames import TokenFrame, TokenItem
from contracts.internal import AdmitReply, Progress, Settled
from stages.egress.closed import Closed
from stages.egress.delivery import Text
from stages.egress.ending import Ending
from stages.egress.output import End, Step
from stages.egress.session import Phase, Session
from stages.egress.sink import Sink
from stages.runtime.bus import Bus
from stages.runtime.clock import now_ms

log = logging.getLogger("headrace.egress")
SHUTTING_DOWN = ErrorInfo(
    code=ErrorCode.SHUTTING_DOWN, message="this process is stopping; call again", retry_after_s=1.0
)


@dataclass(slots=True)
class Live:
    """An open session, its client and its alarm."""

    session: Session
    sink: Sink
    alarm: asyncio.TimerHandle | None = None
    alarm_ms: float = float("inf")
    position: int = 0  # in its pool's queue, as last heard


class Sessions:
    """The open sessions by request id. `texts` makes a detokenizer for a model of the topology."""

    def __init__(self, bus: Bus, ending: Ending, texts: Callable[[str], Text]) -> None:
        self._bus = bus
        self._ending = ending
        self._texts = texts
        self._open: dict[str, Live] = {}
        self._closed = Closed()
        self._endings = 0  # closed sessions whose receipt or last message is on its way
        self._idle = asyncio.Event()
        self._idle.set()
        self.draining = False
        names = ("total", "chunks", "tokens", "frames", "late_items", "cancelled", "timeouts")
        self._counts = dict.fromkeys(names, 0)

    def counters(self) -> dict[str, float]:
        """Figures for beats."""
        counts = {name: float(count) for name, count in self._counts.items()}
        counts["sessions_total"] = counts.pop("total")
        return {"sessions_open": float(len(self._open)), **counts}

    async def idle(self, limit_s: float) -> None:
        """Wait until no session is open and every receipt is stored, at most `limit_s`."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._idle.wait(), limit_s)

    def open(self, session: Session, sink: Sink) -> None:
        """Hold a client's session; raises `HeadraceError` while draining.

        Asked again for an id that is known, it does nothing: ingress repeats a call whose answer
        was lost, and a second session would give the client two ends.
        """
        known = session.request_id
        if known in self._open or self._closed.progress(known) is not None:
            return
        if self.draining:
            error = HeadraceError(SHUTTING_DOWN.code, SHUTTING_DOWN.message)
            error.info = SHUTTING_DOWN
            raise error
        self._counts["total"] += 1
        self._idle.clear()
        self._open[session.request_id] = live = Live(session, sink)
        self._arm(live)

    def drop(self, request_id: str) -> None:
        """Forget a NATS client's session that was never settled: another egress holds it now."""
        live = self._open.get(request_id)
        if live is not None and live.session.drop():
            self._forget(live)
            self._check_idle()

    async def settle(self, settled: Settled) -> None:
        """Admission has decided."""
        live = self._open.get(settled.request_id)
        if live is None:
            if settled.admitted is not None:  # its client was told long ago that it failed
                orphan = End(FinishReason.ERROR, orphan=True)
                await self._ending.notify(settled.request_id, orphan)
        elif settled.admitted is None:
            error = settled.error or ErrorInfo(code=ErrorCode.INTERNAL, message="refused")
            await self._apply(live, live.session.refuse(error, now_ms()))
        elif live.session.phase is Phase.OPENING:
            try:
                await self._begin(live, settled.admitted)
            except Exception:
                log.exception("%s could not be settled", settled.request_id)
                error = ErrorInfo(code=ErrorCode.INTERNAL, message="egress failed; see its log")
                await self._apply(live, live.session.refuse(error, now_ms()))

    async def _begin(self, live: Live, terms: AdmitReply) -> None:
        work = terms.work
        step = live.session.settle(terms, self._texts(work.model), now_ms())
        await live.sink.send(Accepted(request_id=work.request_id, decision=work.decision()))
        await self._apply(live, step)

    async def frame(self, frame: TokenFrame) -> None:
        """One engine step of one executor."""
        self._counts["frames"] += 1
        now = now_ms()
        for item in frame.items:
            self._counts["tokens"] += len(item.ids)
            live = self._open.get(item.request_id)
            if live is None:
                self._counts["late_items"] += 1
                continue
            try:
                await self._apply(live, live.session.take(item, frame.sent_ms, now))
            except Exception:
                log.exception("item of %s at %d failed", item.request_id, item.offset)
                await self._break(live, item)

    async def _break(self, live: Live, item: TokenItem) -> None:
        message = f"tokens at {item.offset} could not be turned into text"
        error = ErrorInfo(code=ErrorCode.INTERNAL, message=message)
        await self._apply(live, live.session.fail(error, now_ms()))

    async def cancel(self, request_id: str, tenant: str) -> bool:
        """On behalf of `tenant`; False = it had ended already. A foreign id is not found."""
        live = self._open.get(request_id)
        if live is not None and live.session.tenant == tenant:
            await self._apply(live, live.session.finish(End(FinishReason.CANCELLED), now_ms()))
            return True
        if live is None and self._closed.owned(request_id, tenant):
            return False
        raise HeadraceError(ErrorCode.NOT_FOUND, f"no running request {request_id!r}")

    def leave(self, request_id: str, reason: FinishReason = FinishReason.CANCELLED) -> None:
        """The client has gone."""
        live = self._open.get(request_id)
        if live is not None:
            step = live.session.leave(reason, live.sink.first_unsent(), now_ms())
            self._close(live, step)

    async def fail(self, request_id: str, error: ErrorInfo) -> bool:
        """End an accepted request as an error; False when it is not open."""
        live = self._open.get(request_id)
        if live is None:
            return False
        await self._apply(live, live.session.fail(error, now_ms()))
        return True

    async def position(self, positions: dict[str, int]) -> None:
        """Heartbeats for those that wait."""
        for request_id, position in positions.items():
            live = self._open.get(request_id)
            if live is not None and live.session.phase is Phase.ACCEPTED:
                live.position = position
                await live.sink.send(Queued(position=position))

    async def probe(self) -> None:
        """A word to NATS clients that wait for their first token: only an answer that nobody hears
        tells that a client has left."""
        for live in list(self._open.values()):
            if live.session.door == "nats" and live.session.phase is Phase.ACCEPTED:
                await live.sink.send(Queued(position=live.position))

    def progress(self, request_ids: list[str]) -> list[Progress]:
        """What is known of these requests; unknown ones are left out."""
        found = (
            live.session.progress()
            if (live := self._open.get(request_id)) is not None
            else self._closed.progress(request_id)
            for request_id in request_ids
        )
        return [progress for progress in found if progress is not None]

    async def end_all(self, error: ErrorInfo, *, waiting_only: bool = False) -> None:
        """The drain time is over: for all, or for those that no executor has begun to answer."""
        for live in list(self._open.values()):
            if waiting_only and live.session.moments.started is not None:
                continue
            orphan = live.session.phase is Phase.OPENING
            end = End(FinishReason.ERROR, error, orphan=orphan)
            await self._apply(live, live.session.finish(end, now_ms()))

    async def _apply(self, live: Live, step: Step) -> None:
        keeps_up = True
        if step.chunk is not None:
            self._counts["chunks"] += 1
            keeps_up = await live.sink.chunk(step.chunk)
        if step.end is not None:
            self._close(live, step)
        elif not keeps_up:
            self.leave(live.session.request_id)
        elif live.session.phase is not Phase.CLOSED and live.session.wake_ms != live.alarm_ms:
            self._arm(live)

    def _close(self, live: Live, step: Step) -> None:
        session, end = live.session, step.end
        if end is None:
            return
        self._forget(live)
        self._closed.add(session.request_id, session.tenant, session.assembly.attempt, now_ms())
        self._counts["late_items"] += session.assembly.late_items
        self._counts["cancelled"] += end.reason is FinishReason.CANCELLED
        self._counts["timeouts"] += end.reason is FinishReason.TIMEOUT
        self._endings += 1
        self._bus.spawn(self._end(session, end, live.sink))

    async def _end(self, session: Session, end: End, sink: Sink) -> None:
        try:
            await self._ending.run(session, end, sink)
            if session.terms is not None:
                self._closed.billed(session.request_id, end.reason, now_ms())
        finally:
            self._endings -= 1
            self._check_idle()

    def _forget(self, live: Live) -> None:
        if live.alarm is not None:
            live.alarm.cancel()
        del self._open[live.session.request_id]

    def _check_idle(self) -> None:
        if not self._open and not self._endings:
            self._idle.set()

    def _arm(self, live: Live) -> None:
        if live.alarm is not None:
            live.alarm.cancel()
        live.alarm_ms = live.session.wake_ms
        delay_s = max(0.0, (live.alarm_ms - now_ms()) / 1000)
        loop = asyncio.get_running_loop()
        live.alarm = loop.call_later(delay_s, lambda: self._bus.spawn(self._tick(live)))

    async def _tick(self, live: Live) -> None:
        live.alarm_ms = float("inf")  # so that `_apply` arms again
        await self._apply(live, live.session.tick(now_ms()))
