"""Wiring of ingress: both doors' calls in, one path through intake and admission."""

import asyncio
import logging
import secrets
import time
from collections import Counter
from typing import Final

import nats.errors
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from pydantic import BaseModel, ValidationError

from contracts import subjects
from contracts.client import CancelReply, Refused
from contracts.errors import ErrorCode, ErrorInfo, HeadraceError
from contracts.internal import (
    Beat,
    CancelSession,
    ClientCall,
    Done,
    DropSession,
    OpenSession,
    Settled,
    SettleSession,
    Verb,
    Work,
)
from contracts.topology import Topology
from stages.ingress.access import bearer_key
from stages.ingress.admission import Admission, settle_session, settled
from stages.ingress.catalog import load_models
from stages.ingress.egresses import Egresses
from stages.ingress.intake import Call, Intake, forwarded
from stages.runtime.clock import new_request_id, now_ms
from stages.runtime.stage import Context

PARTITION: Final = 0
OPEN_S: Final = 1.0
OPEN_TRIES: Final = 2
CANCEL_S: Final = 1.0

log = logging.getLogger("headrace.ingress")


class IngressService:
    """Decides for every call: refused with a reason, or passed on."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._bus = context.bus
        self._admission = Admission(context.bus)
        self._egresses = Egresses()
        self._calls: list[Subscription] = []
        self._counts: Counter[str] = Counter()

    async def start(self) -> None:
        """Load tokenizers, then take calls. Raises ModelError for a model not in the store."""
        topology = self._context.topology
        models = await asyncio.to_thread(load_models, topology)
        self._intake = Intake(
            topology, self._context.generation, models, now_ms, lambda: secrets.randbits(63)
        )
        await self._bus.listen(subjects.beat("egress", "*"), self._on_beat)
        self._calls = [
            await self._bus.serve(
                subjects.ingress(PARTITION), ClientCall, self._door_call, queue="ingress"
            ),
            await self._bus.client.subscribe(
                subjects.CLIENT_CALLS, queue="ingress", cb=self._receive
            ),
        ]

    async def prepare(self, topology: Topology) -> None:
        """Nothing to load."""

    async def reconfigure(self, topology: Topology, generation: int) -> None:
        """Nothing to change yet."""

    async def drain(self) -> None:
        """Finish the calls that came in; others go to other ingress processes."""
        for subscription in self._calls:
            await subscription.drain()  # type: ignore[no-untyped-call]  # nats-py's is unannotated
        await self._bus.settle(2.5)  # of limits.DRAIN_S

    def counters(self) -> dict[str, float]:
        """Calls by outcome since start; `refused_<code>` for each error code met."""
        return {"calls": 0, "admitted": 0, "refused": 0, "dropped": 0, **self._counts}

    def detail(self) -> dict[str, str]:
        """The egress processes that take sessions."""
        return {"egresses": ", ".join(self._egresses.alive(time.monotonic())) or "none"}

    def _on_beat(self, msg: Msg) -> None:
        self._egresses.hear(Beat.model_validate_json(msg.data), time.monotonic())

    def _refused(self, error: HeadraceError) -> ErrorInfo:
        self._counts["refused"] += 1
        self._counts[f"refused_{error.info.code.value}"] += 1
        return error.info

    # A door other than NATS

    async def _door_call(self, door_call: ClientCall, msg: Msg) -> BaseModel | bytes:
        self._counts["calls"] += 1
        call = Call(
            request_id=door_call.request_id,
            verb=door_call.verb,
            door=door_call.door,
            api_key=door_call.api_key,
            tenant=door_call.tenant,
            body=door_call.body.encode(),
            received_ms=door_call.received_ms,
        )
        try:
            tenant, verb = self._intake.enter(call)
            if verb not in ("generate", "chat"):
                return await self._answer(call, tenant, verb)
            work = await self._intake.work(call, tenant, verb)
            admitted = await self._admission.ask(forwarded(work, door_call.egress, now_ms()))
        except HeadraceError as error:
            info = self._refused(error)
            if door_call.verb in ("generate", "chat"):
                return Settled(request_id=call.request_id, error=info)
            raise
        self._counts["admitted"] += 1
        return settled(call.request_id, admitted)

    # NATS clients

    async def _receive(self, msg: Msg) -> None:
        self._bus.spawn(self._client_call(msg, now_ms()))

    async def _client_call(self, msg: Msg, received_ms: float) -> None:
        self._counts["calls"] += 1
        tenant, verb = msg.subject.split(".")[2:4]
        if not subjects.is_inbox(msg.reply, tenant):
            self._counts["dropped"] += 1
            log.warning("dropped a %s call of %s: reply %.80r is no inbox", verb, tenant, msg.reply)
            return
        call = Call(
            request_id=new_request_id(),
            verb=verb,
            door="nats",
            api_key=bearer_key(msg.headers),
            tenant=tenant,
            body=msg.data,
            received_ms=received_ms,
            traceparent=(msg.headers or {}).get("traceparent"),
        )
        try:
            answer = await self._take(call, msg.reply)
        except HeadraceError as error:
            answer = Refused(request_id=call.request_id, error=self._refused(error))
        except Exception:
            log.exception("call %s failed", call.request_id)
            answer = Refused(request_id=call.request_id, error=self._refused(_failed()))
        if answer is not None:
            await self._bus.publish(msg.reply, answer)

    async def _take(self, call: Call, reply: str) -> BaseModel | None:
        """What to answer at once; None where the egress speaks from here on."""
        tenant, verb = self._intake.enter(call)
        if verb not in ("generate", "chat"):
            return await self._answer(call, tenant, verb)
        work = await self._intake.work(call, tenant, verb)
        egress = await self._open(work, reply)
        await self._settle(forwarded(work, egress, now_ms()))
        return None

    async def _open(self, work: Work, reply: str) -> str:
        """Have a live egress hold the session; its name. Raises no_capacity."""
        call = OpenSession(
            request_id=work.request_id,
            tenant=work.tenant,
            reply=reply,
            received_ms=work.stamps.received,
        )
        for _ in range(OPEN_TRIES):
            egress = self._egresses.pick(time.monotonic())
            if await self._open_at(egress, call):
                return egress
            self._egresses.drop(egress)
            # Only its answer may be missing: the session must not live on beside another one.
            await self._tell(egress, DropSession(request_id=work.request_id))
        raise HeadraceError(
            ErrorCode.NO_CAPACITY,
            "no egress process opens a session; call again in 1 s",
            retry_after_s=1.0,
        )

    async def _open_at(self, egress: str, call: OpenSession) -> bool:
        """Whether it holds the session. Raises invalid_request for an inbox it does not take."""
        try:
            return (await self._bus.request(subjects.session(egress), call, Done, OPEN_S)).ok
        except (HeadraceError, ValidationError, OSError, nats.errors.Error) as error:
            if isinstance(error, HeadraceError) and error.info.code is ErrorCode.INVALID_REQUEST:
                raise
            log.warning("egress %s opens no session: %r", egress, error)
            return False

    async def _settle(self, work: Work) -> None:
        """Tell the egress how admission went; it alone tells the client, whatever goes wrong here."""
        message: BaseModel | bytes
        try:
            admitted = await self._admission.ask(work)
            message = settle_session(settled(work.request_id, admitted))
            self._counts["admitted"] += 1
        except HeadraceError as error:
            outcome = Settled(request_id=work.request_id, error=self._refused(error))
            message = SettleSession(settled=outcome)
        except Exception:
            log.exception("call %s failed", work.request_id)
            await self._admission.forget(work.request_id)
            outcome = Settled(request_id=work.request_id, error=self._refused(_failed()))
            message = SettleSession(settled=outcome)
        await self._tell(work.egress, message)

    async def _tell(self, egress: str, message: BaseModel | bytes) -> None:
        """Without waiting. What does not reach a session in 10 s, the egress does without."""
        try:
            await self._bus.publish(subjects.session(egress), message)
        except (OSError, nats.errors.Error) as error:
            log.warning("nothing goes to egress %s: %r", egress, error)

    # Calls that are answered at once

    async def _answer(self, call: Call, tenant: str, verb: Verb) -> BaseModel:
        if verb == "models":
            return self._intake.models()
        request_id = self._intake.cancel(call)
        session = CancelSession(request_id=request_id, tenant=tenant)
        asked = [self._cancel_at(name, session) for name in self._egresses.alive(time.monotonic())]
        if any(await asyncio.gather(*asked)):
            return CancelReply(request_id=request_id)
        raise HeadraceError(
            ErrorCode.NOT_FOUND,
            f"no running request {request_id!r} of tenant {tenant!r}; it may have ended",
            field="request_id",
        )

    async def _cancel_at(self, egress: str, session: CancelSession) -> bool:
        try:
            return (await self._bus.request(subjects.session(egress), session, Done, CANCEL_S)).ok
        except HeadraceError:
            return False


def _failed() -> HeadraceError:
    return HeadraceError(ErrorCode.INTERNAL, "ingress failed; see its log")
