"""What comes in: headers and a bounded body."""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from starlette.requests import ClientDisconnect, Request

from contracts.client import MAX_REQUEST_BYTES
from stages.egress.http.calls import Caller, too_large
from stages.egress.http.errors import JSON, HttpError, invalid

BODY_S: Final = 30.0
# The rest of a body that is too large is read and thrown away up to here, so that its sender reads
# our answer; beyond, the connection is closed.
DRAINED_BYTES: Final = 64 << 20
KEY_MAX: Final = 256


def caller_of(headers: Mapping[str, str]) -> Caller:
    """Raises `HttpError` for an idempotency key that is empty or too long."""
    scheme, _, key = headers.get("authorization", "").partition(" ")
    bearer = key.strip() or None if scheme.lower() == "bearer" else None
    idempotency_key = headers.get("idempotency-key")
    if idempotency_key is not None and not 1 <= len(idempotency_key) <= KEY_MAX:
        message = f"idempotency-key must have 1 to {KEY_MAX} characters; correct it"
        raise invalid(message, "idempotency-key")
    return Caller(bearer, headers.get("x-headrace-tenant"), idempotency_key)


async def read_body(request: Request) -> bytes:
    """The JSON text, without reading more than a request may have. Raises `HttpError`."""
    _check_kind(request.headers)
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > MAX_REQUEST_BYTES:
        raise replace(
            too_large(f"the request has {declared} bytes"), close=int(declared) > DRAINED_BYTES
        )
    parts, size = [], 0
    try:
        async with asyncio.timeout(BODY_S):
            async for part in request.stream():
                size += len(part)
                if size > MAX_REQUEST_BYTES:
                    raise replace(too_large(f"the request has more than {size} bytes"), close=True)
                parts.append(part)
    except TimeoutError:
        message = f"the body did not arrive in {BODY_S:.0f} s; send it again"
        raise HttpError(408, "request_timeout", message, retry=True, close=True) from None
    except ClientDisconnect:
        raise HttpError(400, "disconnected", "the client left", close=True) from None
    return b"".join(parts)


def _check_kind(headers: Mapping[str, str]) -> None:
    kind = headers.get("content-type", JSON).partition(";")[0].strip().lower()
    if kind != JSON:
        message = f"content-type is {kind[:80]!r}; send {JSON}"
        raise invalid(message, "content-type", status=415)
    encoding = headers.get("content-encoding", "identity").strip().lower()
    if encoding != "identity":
        message = f"content-encoding {encoding[:80]!r} is not taken; send the JSON as it is"
        raise invalid(message, "content-encoding", status=415)
