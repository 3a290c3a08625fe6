"""The NATS side: sessions opened by ingress, questions from queueing, clients that went away."""

import asyncio
import logging
from typing import Final

import nats.errors
from nats.aio.msg import Msg
from pydantic import BaseModel

from contracts import subjects
from contracts.client import Accepted, Complete, Queued, Refused
from contracts.errors import ErrorCode, HeadraceError
from contracts.internal import (
    SESSION_CALL,
    CancelSession,
    Done,
    DropSession,
    FailSession,
    OpenSession,
    ProgressQuery,
    ProgressReply,
    QueuePosition,
    SessionCall,
    SettleSession,
)
from stages.egress.output import CHUNK_ENCODER, ChunkOut
from stages.egress.session import Session
from stages.egress.sessions import Sessions
from stages.runtime.bus import Bus
from stages.runtime.clock import now_ms
from stages.runtime.loops import forever

# After a restart of the bus clients come back later than we do (nats-py: every 2 s).
CLIENTS_RETURN_S: Final = 6.0
PROBE_S: Final = 1.0

log = logging.getLogger("headrace.egress")


class NatsSink:
    """A client's inbox. nats-server itself cuts off a client that does not read."""

    def __init__(self, bus: Bus, inbox: str, gone: str) -> None:
        self._client = bus.client
        self._inbox = inbox
        self._gone = gone

    async def send(self, message: Accepted | Queued | Complete | Refused) -> None:
        """Publish as JSON, without keys that have no value."""
        await self._publish(message.model_dump_json(exclude_none=True).encode())

    async def chunk(self, chunk: ChunkOut) -> bool:
        """Publish; False when our own connection cannot take any more."""
        return await self._publish(CHUNK_ENCODER.encode(chunk))

    def first_unsent(self) -> int | None:
        """Nothing waits here."""
        return None

    async def _publish(self, payload: bytes) -> bool:
        try:
            await self._client.publish(self._inbox, payload, reply=self._gone)
        except (OSError, nats.errors.Error) as error:
            log.warning("nothing goes to %s: %r", self._inbox, error)
            return False
        return True


class NatsDoor:
    """Serves `hr.open.<egress>` and `hr.gone.<egress>.*`."""

    def __init__(self, bus: Bus, sessions: Sessions, egress: str) -> None:
        self._bus = bus
        self._sessions = sessions
        self._egress = egress

    async def start(self) -> None:
        """Subscribe."""
        await self._bus.listen(subjects.gone(self._egress, "*"), self._on_gone)
        await self._bus.serve(subjects.session(self._egress), SESSION_CALL, self._on_call)
        probing = forever("probing NATS clients", self._sessions.probe, PROBE_S)
        self._probing = asyncio.get_running_loop().create_task(probing)

    def stop(self) -> None:
        """Probe no more."""
        self._probing.cancel()

    def _on_gone(self, msg: Msg) -> None:
        # The server answers a message that nobody listened to; a client might, too: not for us.
        unheard = msg.headers is not None and msg.headers.get("Status") == "503"
        if unheard and self._bus.connected_for_s() > CLIENTS_RETURN_S:
            self._sessions.leave(msg.subject.rpartition(".")[2])

    async def _on_call(self, call: SessionCall, _: Msg) -> BaseModel | None:
        match call:
            case OpenSession():
                return self._open(call)
            case SettleSession():
                await self._sessions.settle(call.settled)
            case CancelSession():
                return Done(ok=await self._sessions.cancel(call.request_id, call.tenant))
            case DropSession():
                self._sessions.drop(call.request_id)
            case ProgressQuery():
                return ProgressReply(sessions=self._sessions.progress(call.request_ids))
            case QueuePosition():
                await self._sessions.position(call.positions)
            case FailSession():
                return Done(ok=await self._sessions.fail(call.request_id, call.error))
        return None

    def _open(self, call: OpenSession) -> Done:
        if not subjects.is_inbox(call.reply, call.tenant):
            raise HeadraceError(
                ErrorCode.INVALID_REQUEST,
                f"reply subject {call.reply[:80]!r} is not an inbox; request with a reply of the "
                "form _INBOX.<token>, as NATS clients do by themselves",
                field="reply",
            )
        gone = subjects.gone(self._egress, call.request_id)
        sink = NatsSink(self._bus, call.reply, gone)
        session = Session(call.request_id, "nats", call.received_ms, now_ms(), call.tenant)
        self._sessions.open(session, sink)
        return Done(ok=True)
