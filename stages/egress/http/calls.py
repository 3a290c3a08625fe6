"""From a call to its sessions: each answer is a request of its own, admitted all or none."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from pydantic_core import to_json

from contracts.client import MAX_REQUEST_BYTES, ModelList, Refused
from contracts.errors import HeadraceError
from contracts.internal import ClientCall, Settled, Verb
from stages.egress.admission import admit, ask, who_resumes
from stages.egress.http.errors import HttpError, invalid, problem, unsupported
from stages.egress.http.inbox import HttpSink, Inbox
from stages.egress.http.reply import Reply
from stages.egress.http.translate import Asked, translate
from stages.egress.resuming import Resuming
from stages.egress.session import Session
from stages.egress.sessions import Sessions
from stages.runtime.bus import Bus
from stages.runtime.clock import new_request_id, now_ms

LARGE_BYTES: Final = 64 << 10  # a body above this is converted beside the loop that all streams use
UNBOUNDED: Final = 1 << 62  # a whole answer is kept until it is complete; max_tokens bounds it


@dataclass(frozen=True)
class Caller:
    """Who calls, as the headers say it; ingress decides whether it is true."""

    api_key: str | None
    tenant: str | None
    idempotency_key: str | None = None


@dataclass(frozen=True)
class Place:
    """Where a client wants to go on reading."""

    request_id: str
    offset: int


class Calls:
    """Starts and resumes calls through this process."""

    def __init__(
        self, bus: Bus, sessions: Sessions, resuming: Resuming, egress: str, buffer_chunks: int
    ) -> None:
        self._bus = bus
        self._sessions = sessions
        self._resuming = resuming
        self._egress = egress
        self.buffer_chunks = buffer_chunks

    async def begin(self, verb: Verb, raw: bytes, caller: Caller, request_id: str) -> Reply:
        """Open the sessions of a new call and ask for their admission. Raises `HttpError`."""
        received_ms = now_ms()

        def convert() -> tuple[Asked, list[str], list[bytes]]:
            asked = translate(verb, raw)
            _check_repeatable(asked, caller)
            ids = [request_id, *(new_request_id() for _ in range(asked.n - 1))]
            return asked, ids, self._encode(asked, ids, caller, received_ms)

        large = len(raw) > LARGE_BYTES
        asked, ids, encoded = await asyncio.to_thread(convert) if large else convert()
        inbox = Inbox()
        limit = self.buffer_chunks if asked.stream else UNBOUNDED
        sinks = [HttpSink(inbox, choice, limit) for choice in range(asked.n)]
        try:
            now = now_ms()
            for each, sink in zip(ids, sinks, strict=True):
                self._sessions.open(Session(each, "http", received_ms, now), sink)
        except HeadraceError as error:
            self._leave(sinks)
            raise problem(error.info) from None
        self._bus.spawn(self._admit(ids, encoded))
        return Reply(asked, inbox, request_id, partial(self._leave, sinks))

    def _encode(
        self, asked: Asked, ids: Sequence[str], caller: Caller, received_ms: float
    ) -> list[bytes]:
        calls = [
            ClientCall(
                request_id=request_id,
                verb=asked.verb,
                egress=self._egress,
                door="http",
                api_key=caller.api_key,
                tenant=caller.tenant,
                body=asked.body(choice, caller.idempotency_key),
                received_ms=received_ms,
                sibling_of=ids[0] if choice else None,
                choice=choice,
            )
            for choice, request_id in enumerate(ids)
        ]
        encoded = [call.model_dump_json().encode() for call in calls]
        size = sum(map(len, encoded))
        if size > MAX_REQUEST_BYTES:
            raise too_large(f"the request makes {size} bytes for {asked.n} answers")
        return encoded

    def _leave(self, sinks: Sequence[HttpSink]) -> None:
        for sink in sinks:
            self._sessions.leave(sink)

    async def _admit(self, ids: Sequence[str], encoded: Sequence[bytes]) -> None:
        """All or none. The first, to which the prompt is billed, comes last: when it is asked for, the
        others are in."""
        others = await asyncio.gather(
            *(
                self._admit_one(request_id, call)
                for request_id, call in zip(ids[1:], encoded[1:], strict=True)
            )
        )
        refused = [settled for settled in others if settled.error is not None]
        if refused:
            await self._resuming.settle(Settled(request_id=ids[0], error=refused[0].error))
        else:
            await self._admit_one(ids[0], encoded[0])

    async def _admit_one(self, request_id: str, call: bytes) -> Settled:
        settled = await admit(self._bus, request_id, call)
        await self._resuming.settle(settled)
        return settled

    def resume(self, asked: Asked, place: Place, caller: Caller, call_id: str) -> Reply:
        """Go on with a request, running or finished, after `place`."""
        inbox = Inbox()
        sink = HttpSink(inbox, 0, self.buffer_chunks if asked.stream else UNBOUNDED)
        wanted = {"request_id": place.request_id, "offset": place.offset}  # ingress checks it
        call = self._call("resume", to_json(wanted).decode(), caller)
        self._bus.spawn(self._attach(call, place, inbox, sink))
        leave = partial(self._leave, [sink])
        return Reply(asked, inbox, call_id, leave, start=place.offset)

    async def _attach(self, call: ClientCall, place: Place, inbox: Inbox, sink: HttpSink) -> None:
        """Who is it, then go on; what fails is told to the sink."""
        try:
            request_id, tenant = await who_resumes(self._bus, call)
        except HeadraceError as error:
            await sink.send(Refused(request_id=place.request_id, error=error.info))
            return
        if not inbox.left:
            self._resuming.start(request_id, tenant, place.offset, sink)

    async def models(self, caller: Caller) -> ModelList:
        """What the caller may name. Raises `HttpError`."""
        call = self._call("models", "{}", caller)
        try:
            return ModelList.model_validate_json(await ask(self._bus, call))
        except HeadraceError as error:
            raise problem(error.info) from None

    def _call(self, verb: Verb, body: str, caller: Caller) -> ClientCall:
        return ClientCall(
            request_id=new_request_id(),
            verb=verb,
            egress=self._egress,
            door="http",
            api_key=caller.api_key,
            tenant=caller.tenant,
            body=body,
            received_ms=now_ms(),
        )


def _check_repeatable(asked: Asked, caller: Caller) -> None:
    if asked.n > 1 and caller.idempotency_key is not None:
        message = "idempotency-key with n > 1 is not supported yet; leave one of them out"
        raise unsupported("n", message)


def too_large(what: str) -> HttpError:
    """More than the bus could carry."""
    message = f"{what}; at most {MAX_REQUEST_BYTES} are possible: shorten it"
    return invalid(message, status=413)
