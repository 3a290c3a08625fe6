"""The NATS side: sessions opened by ingress, questions from others, clients that went away."""

import asyncio
import time
from itertools import count
from typing import Final
from weakref import WeakValueDictionary

from nats.aio.msg import Msg
from pydantic import BaseModel

from contracts import subjects
from contracts.client import Queued
from contracts.errors import ErrorCode, HeadraceError
from contracts.internal import Done
from contracts.sessions import (
    SESSION_CALL,
    AdoptSession,
    CancelSession,
    DropSession,
    FailSession,
    OpenSession,
    ProgressQuery,
    ProgressReply,
    QueuePosition,
    ResumeSession,
    SessionCall,
    SettleSession,
    YieldSession,
)
from stages.egress.nats_sink import NatsSink
from stages.egress.orders import Orders
from stages.egress.resuming import Resuming
from stages.egress.session import Phase, Session
from stages.egress.sessions import Sessions
from stages.runtime.bus import Bus
from stages.runtime.clock import now_ms
from stages.runtime.loops import forever

# After a restart of the bus clients come back later than we do (nats-py: every 2 s).
CLIENTS_RETURN_S: Final = 6.0
PROBE_S: Final = 1.0


class NatsDoor:
    """Serves `hr.open.<egress>` and `hr.gone.<egress>.*`."""

    def __init__(
        self, bus: Bus, sessions: Sessions, resuming: Resuming, orders: Orders, egress: str
    ) -> None:
        self._bus = bus
        self._sessions = sessions
        self._resuming = resuming
        self._orders = orders
        self._egress = egress
        self._attachments = count(1)
        self._sinks: WeakValueDictionary[str, NatsSink] = WeakValueDictionary()  # by `gone`

    async def start(self) -> None:
        """Subscribe."""
        await self._bus.listen(subjects.gone(self._egress, "*"), self._on_gone)
        await self._bus.serve(subjects.session(self._egress), SESSION_CALL, self._on_call)
        probing = forever("probing NATS clients", self._probe, PROBE_S)
        self._probing = asyncio.get_running_loop().create_task(probing)

    def stop(self) -> None:
        """Probe no more."""
        self._probing.cancel()

    def _on_gone(self, msg: Msg) -> None:
        # The server answers a message that nobody listened to; a client might, too: not for us.
        unheard = msg.headers is not None and msg.headers.get("Status") == "503"
        sink = self._sinks.get(msg.subject)
        if unheard and sink is not None and self._bus.connected_for_s() > CLIENTS_RETURN_S:
            self._sessions.leave(sink)

    async def _probe(self) -> None:
        """A word to clients that have heard nothing for a while: only an answer that nobody hears
        tells that a client has left, and only a word tells a client that we are still here."""
        for sink in list(self._sinks.values()):
            live = self._sessions.held(sink)
            if live is None or live.session.phase in (Phase.OPENING, Phase.CLOSED):
                continue
            if time.monotonic() - sink.told_s > PROBE_S / 2:
                waits = live.session.phase is Phase.ACCEPTED
                await sink.send(Queued(position=live.position if waits else 0))

    async def _on_call(self, call: SessionCall, _: Msg) -> BaseModel | None:
        match call:
            case OpenSession():
                self._open(call)
            case SettleSession():
                await self._resuming.settle(call.settled)
                return Done(ok=self._sessions.find(call.settled.request_id) is not None)
            case ResumeSession():
                sink = self._sink(call.request_id, call.reply, call.tenant)
                self._resuming.start(
                    call.request_id, call.tenant, call.offset, sink, call.received_ms
                )
            case AdoptSession():
                await self._resuming.adopt(call)
            case YieldSession():
                if call.egress == self._egress:  # queueing's late word about an older home
                    return ProgressReply(sessions=self._orders.progress([call.request_id]))
                return ProgressReply(sessions=self._resuming.hand_over(call.request_id))
            case DropSession():
                self._sessions.drop(call.request_id)
                return None
            case _:
                return await self._order(call)
        return Done(ok=True)

    async def _order(
        self, call: CancelSession | ProgressQuery | QueuePosition | FailSession
    ) -> BaseModel | None:
        match call:
            case CancelSession():
                return Done(ok=await self._orders.cancel(call.request_id, call.tenant))
            case ProgressQuery():
                return ProgressReply(sessions=self._orders.progress(call.request_ids))
            case QueuePosition():
                await self._orders.position(call.positions)
                return None
            case FailSession():
                return Done(
                    ok=await self._orders.fail(call.request_id, call.error, call.pool, call.epoch)
                )

    def _open(self, call: OpenSession) -> None:
        sink = self._sink(call.request_id, call.reply, call.tenant)
        session = Session(call.request_id, "nats", call.received_ms, now_ms(), call.tenant)
        self._sessions.open(session, sink)

    def _sink(self, request_id: str, reply: str, tenant: str) -> NatsSink:
        """Raises invalid_request for what is no inbox of this tenant."""
        if not subjects.is_inbox(reply, tenant):
            raise HeadraceError(
                ErrorCode.INVALID_REQUEST,
                f"reply subject {reply[:80]!r} is not an inbox of tenant {tenant!r}; request with a "
                f"reply of the form {subjects.inbox(tenant)}.<token>",
                field="reply",
            )
        gone = subjects.gone(self._egress, str(next(self._attachments)))
        sink = NatsSink(self._bus, request_id, reply, gone)
        self._sinks[gone] = sink
        return sink
