"""A client goes on with its request here: finished, open at this egress, or at another one."""

import asyncio
import logging
import time
from typing import Final

from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_delay, wait_random

from contracts.client import Accepted, Refused
from contracts.errors import ErrorCode, ErrorInfo, HeadraceError
from contracts.internal import AdmitReply, Settled, Work
from contracts.sessions import AdoptSession, Progress, SessionRecord
from stages.egress.delivery import Delivery
from stages.egress.live import Live, Wish
from stages.egress.session import Phase, Session
from stages.egress.sessions import Sessions
from stages.egress.sink import Nobody, Sink
from stages.egress.takeover import NotYetError, take, yielded
from stages.runtime.clock import now_ms
from stages.runtime.streams import KEPT_S

# A request that nobody knows may just be on its way here: it was accepted a moment ago, or its
# record is being written again after a restart of the bus. Foreign ids wait as long.
PATIENCE_S: Final = 1.0
AFTER_RESTART_S: Final = 6.0
TAKE_OVER_S: Final = 10.0  # a queueing owner is replaced in 3 s
RECENT_S: Final = 20.0
PAUSE_S: Final = (0.05, 0.15)
PIECE: Final = 4096  # tokens of one chunk when many are said again: it must fit a message
ALONE_MS: Final = 30_000.0  # an adopted session waits so long for its client, at least

REPLACED: Final = ErrorInfo(
    code=ErrorCode.CONFLICT, message="another client has resumed this request"
)

log = logging.getLogger("headrace.egress")


class Resuming:
    """Attaches clients to requests, and takes sessions over."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions
        self._bus = sessions.bus
        self._moving: set[str] = set()

    async def settle(self, settled: Settled) -> None:
        """Admission has decided: an idempotent repeat goes on as the request that has its answer."""
        if settled.same_as is None or settled.tenant is None:
            await self._sessions.settle(settled)
        elif (sink := self._sessions.release(settled.request_id)) is not None:
            self.start(settled.same_as, settled.tenant, 0, sink)

    def start(
        self, request_id: str, tenant: str, offset: int, sink: Sink, since_ms: float | None = None
    ) -> asyncio.Future[None]:
        """`resume` in the background, so that a door can watch its client meanwhile.

        `since_ms`: when its call came in (default: now); of two clients the later one stays.
        """
        self._sessions.hold(sink, None)
        done = asyncio.get_running_loop().create_future()

        async def run() -> None:
            await self.resume(request_id, tenant, offset, sink, since_ms)
            done.set_result(None)

        self._bus.spawn(run())
        return done

    async def resume(
        self, request_id: str, tenant: str, offset: int, sink: Sink, since_ms: float | None = None
    ) -> None:
        """`sink` gets `accepted`, what is beyond `offset` tokens, and the end; or a refusal."""
        self._sessions.hold(sink, None)
        wish = Wish(request_id, tenant, offset, sink, now_ms() if since_ms is None else since_ms)
        try:
            self._sessions.refuse_while_draining()
            await self._patiently(wish)
        except HeadraceError as error:
            await self._refuse(request_id, error.info, sink)
        except Exception:
            log.exception("%s could not be resumed", request_id)
            info = ErrorInfo(code=ErrorCode.INTERNAL, message="egress failed; see its log")
            await self._refuse(request_id, info, sink)

    async def _refuse(self, request_id: str, error: ErrorInfo, sink: Sink) -> None:
        self._sessions.leave(sink)
        await sink.send(Refused(request_id=request_id, error=error))

    async def _patiently(self, wish: Wish) -> None:
        began_s = time.monotonic()
        try:
            async for attempt in AsyncRetrying(
                retry=retry_if_exception_type(NotYetError),
                stop=stop_after_delay(TAKE_OVER_S),
                wait=wait_random(*PAUSE_S),
                reraise=True,
            ):
                with attempt:
                    waited_s = time.monotonic() - began_s
                    await self._once(wish, waited_s)
        except NotYetError:
            raise HeadraceError(
                ErrorCode.NO_CAPACITY,
                f"request {wish.request_id!r} cannot be taken over now; resume it again",
                retry_after_s=1.0,
            ) from None

    async def _once(self, wish: Wish, waited_s: float) -> None:
        request_id, tenant = wish.request_id, wish.tenant
        live = self._sessions.find(request_id)
        if request_id in self._moving or (live is not None and live.session.phase is Phase.OPENING):
            raise NotYetError
        if live is not None and live.session.tenant == tenant:
            await self._attach(live, wish)
            return
        record = None if live is not None else await self._record(request_id)
        if live is None and (request_id in self._moving or self._sessions.find(request_id)):
            raise NotYetError  # another resume, or queueing, was quicker while we read
        if record is None or record.tenant != tenant:
            raise self._unknown(request_id, waited_s)
        if record.complete is not None:
            await self._replay(record, wish.offset, wish.sink)
        else:
            await self._take_over(record, wish, waited_s)

    def _unknown(self, request_id: str, waited_s: float) -> Exception:
        """The same for a foreign id and for one that never was."""
        fresh = self._bus.connected_for_s() < RECENT_S
        if waited_s < (AFTER_RESTART_S if fresh else PATIENCE_S):
            return NotYetError()
        return HeadraceError(
            ErrorCode.NOT_FOUND,
            f"no request {request_id[:64]!r} to resume; an answer is kept for "
            f"{KEPT_S / 60:.0f} minutes after its end",
            field="request_id",
        )

    async def _record(self, request_id: str) -> SessionRecord | None:
        kept = self._sessions.closed.record(request_id)
        if kept is not None:
            record: SessionRecord | None = SessionRecord.model_validate_json(kept)
        else:
            record = await self._sessions.ending.records.read(request_id)
        if record is None or record.complete is None:
            return record
        ended_ms = record.terms.work.stamps.received + record.complete.timings.e2e_ms
        return record if now_ms() - ended_ms < 1000 * KEPT_S else None

    def _delivery(self, work: Work, offset: int) -> Delivery:
        text = self._sessions.texts(work.model)
        return Delivery(text, work.stop, with_ids=work.token_ids, start=offset)

    # Finished

    async def _replay(self, record: SessionRecord, offset: int, sink: Sink) -> None:
        work = record.terms.work
        await sink.send(Accepted(request_id=work.request_id, decision=work.decision()))
        await self._rest(record, self._delivery(work, offset), sink)

    async def _rest(self, record: SessionRecord, delivery: Delivery, sink: Sink) -> None:
        """What a delivery lacks of a finished answer, and its end."""
        assert record.complete is not None
        ids = record.ids or []
        await say_again(delivery, ids, sink)
        delivery.push(ids[delivery.tokens :])
        delivery.flush()
        last = delivery.cut()
        if last is not None:
            await sink.chunk(last)
        await sink.send(record.complete)
        self._sessions.leave(sink)

    # Open here

    async def _attach(self, live: Live, wish: Wish) -> None:
        """The client of this sink, if it is still there, instead of the one before.

        A wish that had to wait does not replace the client of a later one: it may have been given up.
        """
        session, sessions, sink = live.session, self._sessions, wish.sink
        assert session.terms is not None
        work = session.terms.work
        delivery = self._delivery(work, wish.offset)
        await sink.send(Accepted(request_id=work.request_id, decision=work.decision()))
        await say_again(delivery, session.assembly.ids, sink)
        if session.phase is Phase.CLOSED:  # meanwhile
            await self._ended_meanwhile(session.request_id, delivery, sink)
            return
        if not sessions.waits(sink):
            return
        if live.since_ms > wish.since_ms:
            sessions.leave(sink)
            sink.cut_off(REPLACED)
            return
        # From here to its chunk nothing may come between: the order of the text depends on it.
        live.since_ms = wish.since_ms
        before, live.sink = live.sink, sink
        sessions.leave(before)
        sessions.hold(sink, live)
        chunk = session.attach(delivery, now_ms())
        sessions.arm(live)
        sessions.counts["resumed"] += 1
        before.cut_off(REPLACED)
        if chunk is not None:
            await sink.chunk(chunk)

    async def _ended_meanwhile(self, request_id: str, delivery: Delivery, sink: Sink) -> None:
        record = await self._record(request_id)
        if record is not None and record.complete is not None:
            await self._rest(record, delivery, sink)
        else:  # another egress has taken it over
            self._sessions.leave(sink)
            sink.cut_off(REPLACED)

    # Elsewhere

    async def _take_over(self, record: SessionRecord, wish: Wish, waited_s: float) -> None:
        request_id, here = record.request_id, self._sessions.egress
        self._moving.add(request_id)
        try:
            first = record.terms.work.pool or ""
            others = [pool for pool in self._sessions.ending.topology.pools if pool != first]
            taken = await take(self._bus, request_id, record.tenant, here, (first, *others))
            if taken is None:  # it has just ended: its last record is on the way
                raise self._unknown(request_id, waited_s)
            # From here on queueing asks us about it, so we must know it.
            live = self._begin(taken.terms)
            known = await yielded(self._bus, request_id, (taken.before, record.egress), here)
            if self._sessions.find(request_id) is not live:
                raise NotYetError  # yet another egress has taken it from us meanwhile
            if known is not None and not known.open:
                self.hand_over(request_id)
                raise NotYetError  # its last record is on the way, or yet another egress has it
            if known is not None:
                await self._sessions.apply(live, live.session.restore(known, now_ms()))
        finally:
            self._moving.discard(request_id)
        self._sessions.counts["taken_over"] += 1
        await self._sessions.ending.records.begun(taken.terms)
        self._find_tokens(live, taken.executor, taken.attempt, record.egress)
        await self._attach(live, wish)

    def _begin(self, terms: AdmitReply) -> Live:
        """A session that began elsewhere, without a client yet."""
        work, now = terms.work, now_ms()
        received_ms = work.stamps.received
        session = Session(work.request_id, work.door, received_ms, now, work.tenant)
        session.settle(terms, self._sessions.texts(work.model), now)
        session.moments.taken_over = True
        session.detach(now + max(ALONE_MS, work.resume_window_ms), None)
        return self._sessions.start(session, Nobody())

    def _find_tokens(self, live: Live, executor: str | None, attempt: int, before: str) -> None:
        live.executor = live.executor or executor
        live.recorded_at = before if before != self._sessions.egress else None
        if executor is not None or attempt:
            self._sessions.mend(live, take_over=True)

    async def adopt(self, call: AdoptSession) -> None:
        """Queueing gives us a session whose egress is lost. Raises shutting_down."""
        self._sessions.refuse_while_draining()
        request_id = call.terms.work.request_id
        record = await self._record(request_id)
        if record is not None and record.complete is not None:
            # Its egress ended it and died before the receipt was stored; perhaps it was not.
            self._bus.spawn(self._sessions.ending.bill(record, call.attempt))
            return
        if request_id in self._moving or self._sessions.find(request_id) is not None:
            return
        live = self._begin(call.terms)
        self._sessions.counts["adopted"] += 1
        before = record.egress if record is not None else call.terms.work.egress
        await self._sessions.ending.records.begun(call.terms)
        self._find_tokens(live, call.executor, call.attempt, before)

    def hand_over(self, request_id: str) -> list[Progress]:
        """Another egress takes it over: forget it without a word, but for a client that is here."""
        sessions = self._sessions
        live = sessions.find(request_id)
        if live is None:
            known = sessions.closed.progress(request_id)
            return [known] if known is not None else []
        session = live.session
        progress = session.hand_over()
        if session.phase is not Phase.CLOSED:  # not settled: nobody can know it elsewhere
            return []
        sessions.forget(live)
        attempt = session.assembly.attempt
        sessions.closed.add(request_id, session.tenant, attempt, now_ms(), moved=True)
        live.sink.cut_off(REPLACED)
        return [progress]


async def say_again(delivery: Delivery, ids: list[int], sink: Sink) -> None:
    """Tokens that have come before, but for the last piece; beside what others wait for."""
    while len(ids) - delivery.tokens > PIECE and not delivery.stopped:
        delivery.push(ids[delivery.tokens : delivery.tokens + PIECE])
        chunk = delivery.cut()
        if chunk is not None:
            await sink.chunk(chunk)
        await asyncio.sleep(0)
