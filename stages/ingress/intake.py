"""One call's way from bytes to `Work`: every refusal that needs no other stage happens here."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, cast

from contracts.client import (
    CancelRequest,
    ChatRequest,
    GenerateRequest,
    ModelList,
    ResumeRequest,
)
from contracts.errors import ErrorCode, HeadraceError
from contracts.internal import Door, Stamps, Verb, Work
from contracts.subjects import CLIENT_VERBS
from contracts.topology import Topology
from stages.ingress.access import Access, Caller
from stages.ingress.deadline import deadline_ms
from stages.ingress.identity import Identity, identity
from stages.ingress.prompt import PromptMaker, answer_limit
from stages.ingress.routes import Routes
from stages.ingress.validate import parse

_TRACEPARENT: Final = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")


@dataclass(frozen=True)
class Call:
    """A call as a door got it. `tenant` is the one it names, None = the key's."""

    request_id: str
    verb: str
    door: Door
    api_key: str | None
    tenant: str | None
    body: bytes
    received_ms: float
    traceparent: str | None = None
    sibling_of: str | None = None
    choice: int = 0


class Intake:
    """Knows tenants, routes and models. `now_ms` and `new_seed` come from outside."""

    def __init__(
        self,
        topology: Topology,
        generation: int,
        models: Mapping[str, PromptMaker],
        now_ms: Callable[[], float],
        new_seed: Callable[[], int],
    ) -> None:
        self.access = Access(topology.tenants)
        self._routes = Routes(topology)
        self._generation = generation
        self._models = models
        self._now_ms = now_ms
        self._new_seed = new_seed

    def enter(self, call: Call) -> tuple[Caller, Verb]:
        """The caller and what it wants. Raises on access, scope and an unknown verb."""
        caller = self.access.caller(call.api_key, call.tenant, self._now_ms())
        if call.verb not in CLIENT_VERBS:
            raise HeadraceError(
                ErrorCode.NOT_FOUND,
                f"unknown call {call.verb[:64]!r}; there are: {', '.join(CLIENT_VERBS)}",
            )
        caller.allow(call.verb)
        return caller, cast("Verb", call.verb)

    async def work(self, call: Call, caller: Caller, verb: Verb) -> tuple[Work, Identity | None]:
        """A generate or chat call as work, `egress` still empty, and its idempotency key if it has
        one. Raises HeadraceError.
        """
        request: ChatRequest | GenerateRequest = (
            parse(call.body, ChatRequest) if verb == "chat" else parse(call.body, GenerateRequest)
        )
        work = await self._work(call, caller, verb, request)
        return work, identity(caller.tenant, verb, call.choice, request)

    async def _work(
        self, call: Call, caller: Caller, verb: Verb, request: ChatRequest | GenerateRequest
    ) -> Work:
        match = self._routes.match(caller.tenant, verb, request)
        deadline = deadline_ms(request, match.route.timeout_ms, call.received_ms, self._now_ms())
        maker = self._models[match.model]
        prompt_ids = await maker.ids(request)
        limit = answer_limit(
            len(prompt_ids), request.max_tokens, match.route.max_tokens, match.model, maker.context
        )
        sampling = request.sampling()
        if sampling.seed is None:
            sampling = sampling.model_copy(update={"seed": self._new_seed()})
        return Work(
            request_id=call.request_id,
            tenant=caller.tenant,
            egress="",
            door=call.door,
            route=match.name,
            model=match.model,
            model_named=match.model_named,
            pool=match.pool,
            prompt_ids=prompt_ids,
            max_tokens=limit,
            sampling=sampling,
            stop=request.stop,
            ignore_eos=request.ignore_eos,
            token_ids=request.token_ids,
            priority=request.priority,
            deadline_ms=deadline,
            generation=self._generation,
            traceparent=traceparent(call.traceparent),
            metadata=request.metadata,
            stamps=Stamps(received=call.received_ms),
            key_id=caller.key_id,
            sibling_of=call.sibling_of,
            choice=call.choice,
            resume_window_ms=request.resume_window_ms,
        )

    def cancel(self, call: Call) -> str:
        """The request to end. Raises invalid_request."""
        return parse(call.body, CancelRequest).request_id

    def resume(self, call: Call) -> ResumeRequest:
        """The request to go on with. Raises invalid_request."""
        return parse(call.body, ResumeRequest)

    def models(self) -> ModelList:
        """What a tenant may name."""
        return self._routes.models({name: maker.context for name, maker in self._models.items()})


def forwarded(work: Work, egress: str, now_ms: float) -> Work:
    """Work as it leaves ingress, for the egress that holds its session."""
    stamps = work.stamps.model_copy(update={"ingress": now_ms})
    return work.model_copy(update={"egress": egress, "stamps": stamps})


def traceparent(header: str | None) -> str | None:
    """A W3C trace parent, None where it is missing or malformed."""
    return header if header is not None and _TRACEPARENT.fullmatch(header) else None
