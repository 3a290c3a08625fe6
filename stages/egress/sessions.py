"""All sessions of this process: opens, moves and closes them, and keeps their time."""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Final

from contracts.client import Accepted, FinishReason
from contracts.errors import ErrorCode, ErrorInfo, HeadraceError
from contracts.frames import TokenFrame, TokenItem
from contracts.internal import AdmitReply, Settled
from stages.egress.delivery import Text
from stages.egress.ending import Ending
from stages.egress.live import Live
from stages.egress.mending import Mending
from stages.egress.output import End, Step
from stages.egress.session import Phase, Session
from stages.egress.sink import Nobody, Sink
from stages.runtime.bus import Bus
from stages.runtime.clock import now_ms

log = logging.getLogger("headrace.egress")
SHUTTING_DOWN = ErrorInfo(
    code=ErrorCode.SHUTTING_DOWN, message="this process is stopping; call again", retry_after_s=1.0
)
TOO_SLOW: Final = ErrorInfo(
    code=ErrorCode.SATURATED,
    message="the answer was read too slowly; resume it from what you have",
    retry_after_s=0.0,
)


class Sessions:
    """The open sessions by request id. `texts` makes a detokenizer for a model of the topology.

    A door opens a session with a sink and leaves by that sink: it need not know whether another
    client has taken the session over, or whether it became a part of an earlier request.
    """

    def __init__(self, bus: Bus, ending: Ending, texts: Callable[[str], Text], egress: str) -> None:
        self.bus = bus
        self.texts = texts
        self.egress = egress
        self.ending = ending
        self.closed = ending.closed
        self.mending = Mending(bus, egress, self.apply)
        self.draining = False
        self._open: dict[str, Live] = {}
        self._held: dict[Sink, Live | None] = {}  # None while a resume is under way
        self._empty = asyncio.Event()
        self._empty.set()
        names = ("total", "chunks", "tokens", "frames", "late_items", "cancelled", "timeouts")
        self.counts = dict.fromkeys((*names, "resumed", "taken_over", "adopted", "repairs"), 0)

    def counters(self) -> dict[str, float]:
        """Figures for beats."""
        counts = {name: float(count) for name, count in self.counts.items()}
        counts["sessions_total"] = counts.pop("total")
        return {"sessions_open": float(len(self._open)), **counts}

    async def idle(self, limit_s: float) -> None:
        """Wait until no session is open and every receipt is stored, at most `limit_s`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                await self._empty.wait()
                await self.ending.idle.wait()

    def find(self, request_id: str) -> Live | None:
        """An open session."""
        return self._open.get(request_id)

    def all(self) -> list[Live]:
        """Every open session."""
        return list(self._open.values())

    # A session begins

    def open(self, session: Session, sink: Sink) -> None:
        """Hold a client's session; raises `HeadraceError` while draining.

        Asked again for an id that is known, it does nothing: ingress repeats a call whose answer
        was lost, and a second session would give the client two ends.
        """
        known = session.request_id
        if known in self._open or self.closed.progress(known) is not None:
            return
        self.refuse_while_draining()
        self.counts["total"] += 1
        self.start(session, sink)

    def refuse_while_draining(self) -> None:
        """Raises shutting_down."""
        if self.draining:
            error = HeadraceError(SHUTTING_DOWN.code, SHUTTING_DOWN.message)
            error.info = SHUTTING_DOWN
            raise error

    def start(self, session: Session, sink: Sink) -> Live:
        """Hold a session, whatever is known of its id."""
        self._empty.clear()
        self.closed.forget(session.request_id)
        live = Live(session, sink)
        self._open[session.request_id] = live
        self.hold(sink, live)
        self.arm(live)
        return live

    def hold(self, sink: Sink, live: Live | None) -> None:
        """This client belongs to this session; None = it is about to resume one."""
        if not isinstance(sink, Nobody):
            self._held[sink] = live

    def held(self, sink: Sink) -> Live | None:
        """The session of a client."""
        return self._held.get(sink)

    def waits(self, sink: Sink) -> bool:
        """Whether a client that wanted to resume is still there."""
        return sink in self._held

    def drop(self, request_id: str) -> None:
        """Forget a NATS client's session that was never settled: another egress holds it now."""
        live = self._open.get(request_id)
        if live is not None and live.session.door == "nats" and live.session.drop():
            self.forget(live)

    def release(self, request_id: str) -> Sink | None:
        """The client of a session that was not settled yet, to be attached to another one."""
        live = self._open.get(request_id)
        if live is None or not live.session.drop():
            return None
        self.forget(live)
        self.hold(live.sink, None)
        return live.sink

    async def settle(self, settled: Settled) -> None:
        """Admission has decided; of idempotent repeats see `Resuming.settle`."""
        live = self._open.get(settled.request_id)
        if live is None:
            # Its client was told long ago that it failed; of one that was moved another egress knows.
            if settled.admitted is not None and not settled.admitted.work.hop:
                orphan = End(FinishReason.ERROR, orphan=True)
                await self.ending.notify(settled.request_id, orphan)
        elif settled.admitted is None:
            error = settled.error or ErrorInfo(code=ErrorCode.INTERNAL, message="refused")
            await self.apply(live, live.session.refuse(error, now_ms()))
        elif live.session.phase is Phase.OPENING:
            try:
                await self._begin(live, settled.admitted)
            except Exception:
                log.exception("%s could not be settled", settled.request_id)
                error = ErrorInfo(code=ErrorCode.INTERNAL, message="egress failed; see its log")
                await self.apply(live, live.session.refuse(error, now_ms()))
        elif live.session.move(settled.admitted):
            await self.ending.records.begun(settled.admitted)

    async def _begin(self, live: Live, terms: AdmitReply) -> None:
        work = terms.work
        step = live.session.settle(terms, self.texts(work.model), now_ms())
        await live.sink.send(Accepted(request_id=work.request_id, decision=work.decision()))
        # Beside the request, not on its way; before its end, so that the last record is the last.
        await self.ending.records.begun(terms)
        await self.apply(live, step)

    # A session goes on

    async def frame(self, frame: TokenFrame) -> None:
        """One engine step of one executor."""
        self.counts["frames"] += 1
        now = now_ms()
        for item in frame.items:
            self.counts["tokens"] += len(item.ids)
            live = self._open.get(item.request_id)
            if live is None:
                self.counts["late_items"] += 1
                continue
            if item.attempt >= live.session.assembly.attempt:
                live.executor = frame.executor
            try:
                await self.apply(live, live.session.take(item, frame.sent_ms, now))
            except Exception:
                log.exception("item of %s at %d failed", item.request_id, item.offset)
                await self._break(live, item)
            if live.session.assembly.gap and not live.mending:
                self.mend(live)

    def mend(self, live: Live, *, take_over: bool = False) -> None:
        """Look for tokens that are missing, in the background."""
        self.counts["repairs"] += 1
        live.take_over = live.take_over or take_over
        self.bus.spawn(self.mending.run(live))

    async def _break(self, live: Live, item: TokenItem) -> None:
        message = f"tokens at {item.offset} could not be turned into text"
        error = ErrorInfo(code=ErrorCode.INTERNAL, message=message)
        await self.apply(live, live.session.fail(error, now_ms()))

    # A session ends

    def leave(self, sink: Sink, reason: FinishReason = FinishReason.CANCELLED) -> None:
        """The client of this sink has gone; nothing happens when it had no session any more.

        A session with a resume window goes on without it, others end.
        """
        live = self._held.pop(sink, None)
        if live is None or live.sink is not sink:
            return
        session, unsent = live.session, sink.first_unsent()
        terms = session.terms
        window_ms = terms.work.resume_window_ms if terms is not None else 0
        if window_ms and reason is FinishReason.CANCELLED:
            session.detach(now_ms() + window_ms, unsent)
            live.sink = Nobody()
            self.arm(live)
        else:
            self._close(live, session.leave(reason, unsent, now_ms()))

    async def apply(self, live: Live, step: Step) -> None:
        """Carry out what a session's step says."""
        keeps_up, sink = True, live.sink
        if step.chunk is not None:
            self.counts["chunks"] += 1
            keeps_up = await sink.chunk(step.chunk)
        if step.end is not None:
            self._close(live, step)
        elif not keeps_up:
            self.leave(sink)
            if live.session.phase is not Phase.CLOSED:
                sink.cut_off(TOO_SLOW)
        elif live.session.phase is not Phase.CLOSED and live.session.wake_ms != live.alarm_ms:
            self.arm(live)

    def _close(self, live: Live, step: Step) -> None:
        session, end = live.session, step.end
        if end is None:
            return
        self.counts["late_items"] += session.assembly.late_items
        self.counts["cancelled"] += end.reason is FinishReason.CANCELLED
        self.counts["timeouts"] += end.reason is FinishReason.TIMEOUT
        self.ending.start(session, end, live.sink)
        self.forget(live)

    def forget(self, live: Live) -> None:
        """It is no longer here."""
        if live.alarm is not None:
            live.alarm.cancel()
        self._held.pop(live.sink, None)
        if self._open.get(live.session.request_id) is live:
            del self._open[live.session.request_id]
        if not self._open:
            self._empty.set()

    def arm(self, live: Live) -> None:
        """Set its alarm."""
        if live.alarm is not None:
            live.alarm.cancel()
        live.alarm_ms = live.session.wake_ms
        delay_s = max(0.0, (live.alarm_ms - now_ms()) / 1000)
        loop = asyncio.get_running_loop()
        live.alarm = loop.call_later(delay_s, lambda: self.bus.spawn(self._tick(live)))

    async def _tick(self, live: Live) -> None:
        live.alarm_ms = float("inf")  # so that `apply` arms again
        await self.apply(live, live.session.tick(now_ms()))
