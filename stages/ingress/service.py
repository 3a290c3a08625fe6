"""Wiring of ingress: both doors' calls in, one path through intake and admission."""

import logging
import secrets
import time
from collections import Counter
from typing import Final

from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from pydantic import BaseModel

from contracts import subjects
from contracts.client import CancelReply, Refused
from contracts.errors import ErrorCode, ErrorInfo, HeadraceError
from contracts.internal import Beat, ClientCall, Settled, Verb, Work
from contracts.sessions import CancelSession, ResumeSession, SettleSession
from contracts.topology import Topology
from stages.ingress.access import Caller, bearer_key
from stages.ingress.admission import Admission, settle_session, settled
from stages.ingress.catalog import Catalog
from stages.ingress.clients import Clients
from stages.ingress.egresses import Egresses
from stages.ingress.idempotency import Claim, Idempotency
from stages.ingress.identity import Identity
from stages.ingress.intake import Call, Intake, forwarded
from stages.ingress.refusals import Refusals
from stages.ingress.sessions import Sessions
from stages.ingress.turns import Turns
from stages.runtime.clock import new_request_id, now_ms
from stages.runtime.stage import Context

PARTITION: Final = 0

log = logging.getLogger("headrace.ingress")


class IngressService:
    """Decides for every call: refused with a reason, or passed on."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._bus = context.bus
        self._admission = Admission(context.bus)
        self._egresses = Egresses()
        self._sessions = Sessions(context.bus, self._egresses)
        self._idempotency = Idempotency(context.bus, self._sessions.known)
        self._catalog = Catalog()
        self._clients = Clients.of(context, lambda: self._intake.access)
        self._calls: list[Subscription] = []
        self._counts: Counter[str] = Counter()
        self._dropped = Refusals()
        self._turns = Turns()

    async def start(self) -> None:
        """Load tokenizers, then take calls. Raises ModelError for a model not in the store."""
        await self.reconfigure(self._context.topology, self._context.generation)
        await self._clients.start()
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
        """Load the tokenizers of its new models. Raises ModelError."""
        await self._catalog.prepare(topology)

    async def reconfigure(self, topology: Topology, generation: int) -> None:
        """Calls that come from now on; those under way finish with what they began with."""
        models = await self._catalog.models(topology)
        self._intake = Intake(topology, generation, models, now_ms, lambda: secrets.randbits(63))
        self._clients.changed()

    async def drain(self) -> None:
        """Finish the calls that came in; others go to other ingress processes."""
        self._clients.stop()
        for subscription in self._calls:
            await subscription.drain()  # type: ignore[no-untyped-call]  # nats-py's is unannotated
        await self._bus.settle(2.5)  # of limits.DRAIN_S

    def counters(self) -> dict[str, float]:
        """Calls by outcome since start; `refused_<code>` for each error code met."""
        return {
            "calls": 0,
            "admitted": 0,
            "refused": 0,
            "dropped": 0,
            "repeats": 0,
            **self._counts,
            **self._clients.counts,
        }

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
            sibling_of=door_call.sibling_of,
            choice=door_call.choice,
        )
        try:
            return await self._take_door(call, door_call.egress)
        except HeadraceError as error:
            info = self._refused(error)
            if door_call.verb in ("generate", "chat"):
                return Settled(request_id=call.request_id, error=info)
            raise

    async def _take_door(self, call: Call, egress: str) -> BaseModel | bytes:
        intake = self._intake
        caller, verb = intake.enter(call)
        async with self._turns.of(caller.tenant, len(call.body)):
            return await self._work_door(intake, call, caller, verb, egress)

    async def _work_door(
        self, intake: Intake, call: Call, caller: Caller, verb: Verb, egress: str
    ) -> BaseModel | bytes:
        if verb == "resume":
            earlier = intake.resume(call).request_id
            return Settled(request_id=earlier, same_as=earlier, tenant=caller.tenant)
        if verb not in ("generate", "chat"):
            return await self._answer(intake, call, caller.tenant, verb)
        work, identity = await intake.work(call, caller, verb)
        claim = await self._claim(work, identity)
        if isinstance(claim, str):
            return Settled(request_id=call.request_id, same_as=claim, tenant=caller.tenant)
        admitted = await self._admit(forwarded(work, egress, now_ms()), claim)
        return settled(call.request_id, admitted)

    # Both

    async def _claim(self, work: Work, identity: Identity | None) -> Claim | str | None:
        """A str is the earlier request that has the call's idempotency key."""
        if identity is None:
            return None
        claim = await self._idempotency.claim(identity, work.request_id, work.deadline_ms)
        self._counts["repeats"] += isinstance(claim, str)
        return claim

    async def _admit(self, work: Work, claim: Claim | None) -> bytes:
        """Queueing's answer; a refused call frees its key."""
        try:
            admitted = await self._admission.ask(work)
        except BaseException:
            if claim is not None:
                await self._idempotency.free(claim)
            raise
        self._counts["admitted"] += 1
        if claim is not None:
            self._bus.spawn(self._idempotency.stored(claim))
        return admitted

    # NATS clients

    async def _receive(self, msg: Msg) -> None:
        self._bus.spawn(self._client_call(msg, now_ms()))

    async def _client_call(self, msg: Msg, received_ms: float) -> None:
        self._counts["calls"] += 1
        tenant, verb = msg.subject.split(".")[2:4]
        if not subjects.is_inbox(msg.reply, tenant):
            self._counts["dropped"] += 1
            for line in self._dropped.lines(f"of tenant {tenant}", time.monotonic()):
                log.warning(
                    "dropped a %.16r call %s: reply %.80r is no inbox", verb, line, msg.reply
                )
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
        intake = self._intake
        caller, verb = intake.enter(call)
        async with self._turns.of(caller.tenant, len(call.body)):
            return await self._work_here(intake, call, caller, verb, reply)

    async def _work_here(
        self, intake: Intake, call: Call, caller: Caller, verb: Verb, reply: str
    ) -> BaseModel | None:
        if verb == "resume":
            wanted = intake.resume(call)
            await self._resume(call, caller.tenant, wanted.request_id, wanted.offset, reply)
            return None
        if verb not in ("generate", "chat"):
            return await self._answer(intake, call, caller.tenant, verb)
        work, identity = await intake.work(call, caller, verb)
        claim = await self._claim(work, identity)
        if isinstance(claim, str):
            await self._resume(call, caller.tenant, claim, 0, reply)
            return None
        try:
            egress = await self._sessions.open(work, reply)
        except BaseException:
            if claim is not None:
                await self._idempotency.free(claim)
            raise
        await self._settle(forwarded(work, egress, now_ms()), claim)
        return None

    async def _resume(
        self, call: Call, tenant: str, request_id: str, offset: int, reply: str
    ) -> None:
        session = ResumeSession(
            request_id=request_id,
            tenant=tenant,
            offset=offset,
            reply=reply,
            received_ms=call.received_ms,
        )
        await self._sessions.resume(session)

    async def _settle(self, work: Work, claim: Claim | None) -> None:
        """Tell the egress how admission went; it alone tells the client, whatever goes wrong here."""
        message: BaseModel | bytes
        try:
            admitted = await self._admit(work, claim)
            message = settle_session(settled(work.request_id, admitted))
        except HeadraceError as error:
            outcome = Settled(request_id=work.request_id, error=self._refused(error))
            message = SettleSession(settled=outcome)
        except Exception:
            log.exception("call %s failed", work.request_id)
            await self._admission.forget(work.request_id)
            outcome = Settled(request_id=work.request_id, error=self._refused(_failed()))
            message = SettleSession(settled=outcome)
        await self._sessions.tell(work.egress, message)

    # Calls that are answered at once

    async def _answer(self, intake: Intake, call: Call, tenant: str, verb: Verb) -> BaseModel:
        if verb == "models":
            return intake.models()
        request_id = intake.cancel(call)
        if await self._sessions.cancel(CancelSession(request_id=request_id, tenant=tenant)):
            return CancelReply(request_id=request_id)
        raise HeadraceError(
            ErrorCode.NOT_FOUND,
            f"no running request {request_id!r} of tenant {tenant!r}; it may have ended",
            field="request_id",
        )


def _failed() -> HeadraceError:
    return HeadraceError(ErrorCode.INTERNAL, "ingress failed; see its log")
