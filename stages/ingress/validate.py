"""Bytes to a typed request, or one clear error: which field, its value, what was expected, what to do."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from contracts.client import MAX_REQUEST_BYTES, CallOptions
from contracts.errors import ErrorCode, HeadraceError

METADATA_MAX: Final = 16 << 10  # bytes; it travels with every message about the request
SHOWN: Final = 60  # characters of a value, or of a path, that an error repeats
_SUBJECT: Final = re.compile(r"[A-Z][a-z]*( [a-z]+)? should ")
_VALUE_ERROR: Final = "Value error, "

RequestT = TypeVar("RequestT", bound=BaseModel)


def parse(body: bytes, kind: type[RequestT]) -> RequestT:
    """A request of `kind` out of JSON. Raises invalid_request.

    Nesting is bounded by pydantic's parser (about 200 levels).
    """
    if len(body) > MAX_REQUEST_BYTES:
        raise _invalid(
            f"the request has {len(body)} bytes; at most {MAX_REQUEST_BYTES} are taken: shorten it"
        )
    try:
        request = kind.model_validate_json(_text(body))
    except ValidationError as error:
        raise _explain(error, kind) from None
    if isinstance(request, CallOptions):
        _check_metadata(request.metadata)
    return request


def _text(body: bytes) -> str:
    try:
        return body.decode()
    except UnicodeDecodeError as error:
        raise _invalid(
            f"the body is not UTF-8: byte 0x{body[error.start]:02x} at position {error.start}; "
            "send JSON encoded as UTF-8"
        ) from None


def _check_metadata(metadata: Mapping[str, str]) -> None:
    size = sum(len(key.encode()) + len(value.encode()) for key, value in metadata.items())
    if size > METADATA_MAX:
        raise _invalid(
            f"metadata has {size} bytes; at most {METADATA_MAX} are kept: shorten it", "metadata"
        )


def _explain(error: ValidationError, kind: type[BaseModel]) -> HeadraceError:
    """The first mistake in full, the number of others."""
    details = error.errors(include_url=False, include_context=True)
    first = details[0]
    path = ".".join(str(part)[:SHOWN] for part in first["loc"]) or None
    text = _sentence(first, path, kind)
    if len(details) > 1:
        text += f" ({len(details) - 1} more like this)"
    return _invalid(text, path)


def _sentence(first: ErrorDetails, path: str | None, kind: type[BaseModel]) -> str:
    match first["type"]:
        case "json_invalid":
            reason = first.get("ctx", {}).get("error", "syntax error")
            return f"the body is not JSON: {reason}; send one JSON object"
        case "missing":
            return f"{path} is missing{_meaning(first['loc'], kind)}; add it"
        case "extra_forbidden":
            known = ", ".join(_fields(first["loc"], kind))
            return f"{path} is an unknown field; remove it or use one of: {known}"
    expected = _expected(first)
    if path is None:
        return f"the body is {shown(first['input'])}; {expected}"
    said = f"{path} is {shown(first['input'])}: {expected}"
    match first["type"]:
        case "value_error":  # our own words, with what to do
            return said
        case "enum":  # a list of all there is needs no meaning
            return f"{said}; correct it"
    return f"{said}{_meaning(first['loc'], kind)}; correct it"


def _expected(first: ErrorDetails) -> str:
    """What pydantic says, about "it": its sentences begin with a type ("String should have …")."""
    text = _SUBJECT.sub("it should ", first["msg"].replace(" after validation", ""))
    if text.startswith(_VALUE_ERROR):
        text = "it " + text.removeprefix(_VALUE_ERROR)
    if isinstance(first["input"], str):  # a length behind a validator: pydantic says "item"
        text = text.replace(" item", " character")
    return text


def shown(value: Any) -> str:
    """A value as JSON, shortened."""
    if isinstance(value, str):
        value = value[: SHOWN + 1]
    text = json.dumps(value, ensure_ascii=False, default=repr)
    return text if len(text) <= SHOWN + 2 else text[:SHOWN] + "…"


def _meaning(loc: Sequence[int | str], kind: type[BaseModel]) -> str:
    field = kind.model_fields.get(str(loc[0])) if len(loc) == 1 else None
    return f" ({field.description})" if field is not None and field.description else ""


def _fields(loc: Sequence[int | str], kind: type[BaseModel]) -> list[str]:
    """The fields of the object that the last part of `loc` was found in."""
    for part in loc[:-1]:
        if isinstance(part, str) and part in kind.model_fields:
            inner = _model_in(kind.model_fields[part].annotation)
            kind = inner or kind
    return list(kind.model_fields)


def _model_in(annotation: Any) -> type[BaseModel] | None:
    for inner in getattr(annotation, "__args__", (annotation,)):
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            return inner
    return None


def _invalid(text: str, field: str | None = None) -> HeadraceError:
    return HeadraceError(ErrorCode.INVALID_REQUEST, text, field=field)
