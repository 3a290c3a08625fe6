"""The routes. Those that carry every call take the bare request; what they take and give is said in
`document`."""

import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, Final

from fastapi import FastAPI, Request
from pydantic_core import to_json
from starlette.exceptions import HTTPException
from starlette.responses import Response

from contracts.client import ModelCard
from contracts.errors import ErrorCode
from contracts.internal import Verb
from stages.egress.http import document, schemas
from stages.egress.http.calls import Calls, Place
from stages.egress.http.errors import JSON, HttpError, invalid, unsupported
from stages.egress.http.intake import Bodies, caller_of
from stages.egress.http.sse import read_event_id
from stages.egress.http.translate import Asked, translate
from stages.runtime.clock import new_request_id

CHAT: Final = "/v1/chat/completions"
TEXT: Final = "/v1/completions"
MODELS: Final = "/v1/models"
_PAGES: Final = {MODELS, MODELS + "/{model}", "/health", "/openapi.json"}
_RESUMED: Final = {"request_id": "Last-Event-ID"}
_BOOLEANS: Final = {"true": True, "false": False}

log = logging.getLogger("headrace.egress")
Route = Callable[[Request], Awaitable[Response]]


class HttpApp:
    """Routes in front of `calls`. `busy` says whether one more call is too many."""

    def __init__(self, calls: Calls, busy: Callable[[], HttpError | None]) -> None:
        self.draining = False
        self._calls = calls
        self._busy = busy
        self._bodies = Bodies()
        # No page for browsers: theirs loads scripts from other hosts.
        self.asgi = FastAPI(openapi_url=None, docs_url=None, redoc_url=None, redirect_slashes=False)
        self._document: bytes | None = None
        self._add_routes()
        self.asgi.add_exception_handler(HTTPException, _on_http_exception)
        self.asgi.add_exception_handler(Exception, _on_failure)

    def _add_routes(self) -> None:
        verbs: tuple[tuple[Verb, str, type[Any]], ...] = (
            ("chat", CHAT, schemas.ChatCompletion),
            ("generate", TEXT, schemas.TextCompletion),
        )
        for verb, path, answer in verbs:
            self._add("POST", path, self._begin(verb), answer, document.calling(verb))
            one = path + "/{request_id}"
            self._add("GET", one, self._read(verb), answer, document.reading(verb))
        self._add("GET", MODELS, self._models, schemas.ModelListBody, document.listing())
        one = MODELS + "/{model}"
        self._add("GET", one, self._model, schemas.ModelBody, document.listing("model"))
        self._add("GET", "/health", self._health, schemas.Health, document.health())
        page = {"include_in_schema": False}
        self._add("GET", "/openapi.json", self._openapi, dict[str, Any], page)

    def _add(
        self, method: str, path: str, route: Route, answer: Any, options: dict[str, Any]
    ) -> None:
        async def guarded(request: Request) -> Response:
            request_id = new_request_id()
            request.state.request_id = request_id
            try:
                return await route(request)
            except HttpError as refused:
                return refused.response(request_id)

        self.asgi.add_api_route(
            path,
            guarded,
            methods=[method],
            response_model=answer,
            **options,
        )
        if method == "GET" and path in _PAGES:  # others would attach to an answer
            self.asgi.add_route(path, guarded, methods=["HEAD"], include_in_schema=False)

    def _begin(self, verb: Verb) -> Route:
        async def begin(request: Request) -> Response:
            self._refuse_when_busy()
            raw = await self._bodies.read(request)
            caller = caller_of(request.headers)
            last = request.headers.get("last-event-id")
            if last is None:
                return await self._calls.begin(verb, raw, caller, request.state.request_id)
            place = Place(*read_event_id(last))
            asked = translate(verb, raw)
            if asked.n > 1:
                raise unsupported("n", "a stream of several answers cannot be resumed yet")
            asked = replace(asked, names=_RESUMED)
            return self._calls.resume(asked, place, caller, request.state.request_id)

        return begin

    def _read(self, verb: Verb) -> Route:
        async def read(request: Request) -> Response:
            self._refuse_when_busy()
            request_id: str = request.path_params["request_id"]
            last = request.headers.get("last-event-id")
            place = Place(request_id, 0) if last is None else Place(*read_event_id(last))
            if place.request_id != request_id:
                raise invalid("Last-Event-ID is of another request; ask for that", "Last-Event-ID")
            asked = Asked(
                verb,
                {},
                stream=_flag(request, "stream"),
                include_usage=_flag(request, "include_usage"),
                names=None if last is None else _RESUMED,
            )
            caller = caller_of(request.headers)
            return self._calls.resume(asked, place, caller, request.state.request_id)

        return read

    def _refuse_when_busy(self) -> None:
        problem = self._busy()
        if problem is not None:
            raise problem

    async def _models(self, request: Request) -> Response:
        cards = (await self._calls.models(caller_of(request.headers))).models
        return _json(schemas.ModelListBody(data=[_model(card) for card in cards]), request)

    async def _model(self, request: Request) -> Response:
        name: str = request.path_params["model"]
        cards = (await self._calls.models(caller_of(request.headers))).models
        for card in cards:
            if card.id == name:
                return _json(_model(card), request)
        known = ", ".join(card.id for card in cards)
        message = f"unknown model {name[:64]!r}; this tenant may name: {known}"
        raise HttpError(404, "model_not_found", message, "model")

    async def _health(self, request: Request) -> Response:
        state = schemas.Health(status="draining" if self.draining else "serving")
        return _json(state, request, 503 if self.draining else 200)

    async def _openapi(self, request: Request) -> Response:
        if self._document is None:
            self._document = to_json(document.describe(self.asgi))
        return Response(self._document, media_type=JSON)


def _model(card: ModelCard) -> schemas.ModelBody:
    return schemas.ModelBody(id=card.id, context=card.context, pools=card.pools)


def _json(body: schemas.Said, request: Request, status: int = 200) -> Response:
    headers = {"x-request-id": request.state.request_id}
    return Response(body.model_dump_json(), status, headers, JSON)


def _flag(request: Request, name: str) -> bool:
    value = request.query_params.get(name, "false")
    if value not in _BOOLEANS:
        raise invalid(f"{name} must be true or false; correct it", name)
    return _BOOLEANS[value]


async def _on_http_exception(request: Request, error: Exception) -> Response:
    """No such route, or not by this method."""
    assert isinstance(error, HTTPException)
    path = f"{request.method[:16]} {request.url.path[:80]}"
    code = "not_found" if error.status_code == 404 else "method_not_allowed"
    message = f"there is no {path}; {_advice(request.url.path)}"
    problem = HttpError(error.status_code, code, message)
    return problem.response(new_request_id(), error.headers)


def _advice(path: str) -> str:
    """A base URL with one /v1 too few or too many is the usual mistake."""
    for wrong, right in (("/v1/v1/", "/v1/"), ("/chat/", "/v1/chat/")):
        if path.startswith(wrong):
            return f"the base URL should make it {path.replace(wrong, right, 1)[:80]}"
    if path in ("/completions", "/models"):
        return f"the base URL should make it /v1{path}"
    return "see /openapi.json"


async def _on_failure(request: Request, error: Exception) -> Response:
    log.error("%s failed", request.url.path, exc_info=error)
    problem = HttpError(
        500, ErrorCode.INTERNAL.value, "the door failed; see egress's log", retry=None
    )
    return problem.response(new_request_id())
