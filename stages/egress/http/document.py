"""The OpenAPI document: every status a route can give, and what a request may say."""

from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any, Final

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel

from contracts.client import Decision
from contracts.internal import Verb
from stages.egress.http.errors import JSON
from stages.egress.http.messages import MESSAGES_SCHEMA, PROMPT_SCHEMA
from stages.egress.http.options import option_schemas
from stages.egress.http.schemas import ChatChunk, ErrorEnvelope, Health, TextChunk

Responses = dict[int | str, dict[str, Any]]
KNOWN_ERRORS: Final = {
    400: "the request cannot be read, asks for something unknown or not supported, or is too long",
    401: "no API key, or an unknown one",
    403: "the key of another tenant, or without the right to do this",
    404: "no such model, route or request",
    405: "another method is meant",
    408: "the body did not arrive in time",
    409: "an idempotency key used with another body; a request cancelled by its tenant",
    413: "the body is too large",
    415: "the body is not JSON in UTF-8",
    429: "the pool is full; call again after `retry-after`",
    500: "something failed here",
    503: "nothing healthy serves this now; call again after `retry-after`",
    504: "the deadline passed",
}
_READING: Final = (400, 401, 403, 404, 405, 409, 429, 500, 503, 504)
_CALLING: Final = (*_READING, 408, 413, 415)
_LISTING: Final = (401, 403, 404, 405, 500, 503, 504)
_RETRIED: Final = (408, 429, 503)
# Operations as generated clients and pages call them: OpenAI's own names where it has them.
_NAMES: Final[Mapping[Verb, tuple[str, str, str, str]]] = {
    "chat": (
        "createChatCompletion",
        "The answer to a conversation",
        "getChatCompletion",
        "Read an answer to a conversation on, or again",
    ),
    "generate": (
        "createCompletion",
        "The continuation of a text",
        "getCompletion",
        "Read a continuation on, or again",
    ),
}
_ID: Final = {"x-request-id": {"schema": {"type": "string"}, "description": "the request"}}
_DECIDED: Final = {
    f"x-headrace-{name}": {"schema": {"type": "string"}, "description": f"the decision: {name}"}
    for name in Decision.model_fields
}
_AGAIN: Final = {
    "x-should-retry": {
        "schema": {"enum": ["true", "false"]},
        "description": "whether the same call may succeed later; without it the client decides",
    }
}
_RETRY: Final = {
    "retry-after": {"schema": {"type": "string"}, "description": "seconds, rounded up"},
    "retry-after-ms": {"schema": {"type": "string"}, "description": "the same in ms"},
}
_TENANT: Final = {
    "name": "x-headrace-tenant",
    "in": "header",
    "schema": {"type": "string"},
    "description": "refuse keys of any other tenant",
}
_LAST_EVENT: Final = {
    "name": "Last-Event-ID",
    "in": "header",
    "schema": {"type": "string"},
    "description": "the id of the last event received: the stream goes on after it",
}
_IDEMPOTENCY: Final = {
    "name": "idempotency-key",
    "in": "header",
    "schema": {"type": "string", "minLength": 1, "maxLength": 256},
    "description": "the same key and body within 24 h are the same request, run and billed once",
}
_ENVELOPE: Final = {"$ref": "#/components/schemas/ErrorEnvelope"}
_SECURITY: Final[list[dict[str, list[str]]]] = [{"bearer": []}]


def errors(statuses: Sequence[int]) -> Responses:
    """The failures of a route."""
    return {
        status: {
            "model": ErrorEnvelope,
            "description": KNOWN_ERRORS[status],
            "headers": _ID | _AGAIN | (_RETRY if status in _RETRIED else {}),
        }
        for status in sorted(statuses)
    }


def _answered(verb: Verb, statuses: Sequence[int]) -> Responses:
    """A whole answer, or events; and the failures."""
    chunk = ChatChunk if verb == "chat" else TextChunk
    reference = {"$ref": f"#/components/schemas/{chunk.__name__}"}
    event = {
        "type": "object",
        "description": "one event; the data of the last is [DONE]",
        "required": ["data"],
        "properties": {
            "id": {"type": "string", "description": "for Last-Event-ID"},
            "event": {"const": "message"},
            "data": {"type": "string", "description": f"JSON of {chunk.__name__}, or an error"},
        },
    }
    events = {"schema": event, "x-event-data": {"anyOf": [reference, _ENVELOPE]}}
    success = {
        "description": "the answer: one JSON object, or events with stream: true",
        "content": {"text/event-stream": events},
        "headers": _ID | _DECIDED,
    }
    return {200: success, **errors(statuses)}


def calling(verb: Verb) -> dict[str, Any]:
    """Options of the route that starts a call."""
    what = "messages" if verb == "chat" else "prompt"
    schema = {
        "type": "object",
        "required": [what],
        "properties": {
            what: MESSAGES_SCHEMA if verb == "chat" else PROMPT_SCHEMA,
            **option_schemas(verb),
        },
        "additionalProperties": False,
    }
    body = {"required": True, "content": {JSON: {"schema": schema}}}
    extra = {
        "requestBody": body,
        "parameters": [_TENANT, _LAST_EVENT, _IDEMPOTENCY],
        "security": _SECURITY,
    }
    names = _named(*_NAMES[verb][:2])
    return {"responses": _answered(verb, _CALLING), "openapi_extra": extra, **names}


def reading(verb: Verb) -> dict[str, Any]:
    """Options of the route that reads an answer again."""
    flags = {
        "stream": "events instead of one JSON object",
        "include_usage": "a last chunk without choices that has the usage; only with stream",
    }
    parameters = [
        _path("request_id", "the id of the answer, or x-request-id"),
        *(
            {
                "name": name,
                "in": "query",
                "schema": {"enum": ["true", "false"]},
                "description": what,
            }
            for name, what in flags.items()
        ),
        _TENANT,
        _LAST_EVENT,
    ]
    extra = {"parameters": parameters, "security": _SECURITY}
    names = _named(*_NAMES[verb][2:])
    return {"responses": _answered(verb, _READING), "openapi_extra": extra, **names}


def listing(*path: str) -> dict[str, Any]:
    """Options of the routes about models."""
    parameters = [*(_path(name, "its name") for name in path), _TENANT]
    extra = {"parameters": parameters, "security": _SECURITY}
    names = (
        _named("retrieveModel", "A model") if path else _named("listModels", "What a key may name")
    )
    return {"responses": errors(_LISTING), "openapi_extra": extra, **names}


def health() -> dict[str, Any]:
    """Options of the route for load balancers."""
    stopping = {"model": Health, "description": "it is stopping", "headers": _ID}
    names = _named("health", "Whether this process takes calls")
    return {"responses": {**errors([405, 500]), 503: stopping}, **names}


def _named(operation: str, summary: str) -> dict[str, Any]:
    return {"operation_id": operation, "summary": summary}


def _path(name: str, what: str) -> dict[str, Any]:
    schema = {"type": "string", "minLength": 1}
    return {"name": name, "in": "path", "required": True, "schema": schema, "description": what}


def describe(app: FastAPI) -> dict[str, Any]:
    """The document of an app whose routes have the options above."""
    document = get_openapi(
        title="Headrace, OpenAI-compatible",
        version=version("headrace"),
        summary="Chat and text completions of the models of one topology",
        routes=app.routes,
    )
    components = document.setdefault("components", {})
    components["securitySchemes"] = {"bearer": {"type": "http", "scheme": "bearer"}}
    for chunk in (ChatChunk, TextChunk):
        _add_schema(components.setdefault("schemas", {}), chunk)
    return document


def _add_schema(schemas: dict[str, Any], kind: type[BaseModel]) -> None:
    schema = kind.model_json_schema(ref_template="#/components/schemas/{model}")
    schemas |= schema.pop("$defs", {})
    schemas[kind.__name__] = schema
