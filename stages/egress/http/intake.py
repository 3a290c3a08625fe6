"""What comes in: headers and a bounded body."""

import asyncio
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from starlette.requests import ClientDisconnect, Request

from contracts.client import MAX_REQUEST_BYTES
from contracts.errors import ErrorCode, ErrorInfo
from stages.egress.http.calls import Caller, too_large
from stages.egress.http.errors import JSON, HttpError, invalid, problem

BODY_S: Final = 30.0
# A body that is too large is read and thrown away up to here: its sender reads our answer only once
# it has sent all. Beyond, the connection is closed.
DRAINED_BYTES: Final = 64 << 20
# Bodies that are not whole yet: nobody knows yet whose they are.
ARRIVING_BYTES: Final = 256 << 20
KEY_MAX: Final = 256
_CHARSET: Final = re.compile(r'charset\s*=\s*"?([^\s;"]*)', re.IGNORECASE)


def caller_of(headers: Mapping[str, str]) -> Caller:
    """Raises `HttpError` for an idempotency key that is empty or too long."""
    scheme, _, key = headers.get("authorization", "").partition(" ")
    bearer = key.strip() or None if scheme.lower() == "bearer" else None
    idempotency_key = headers.get("idempotency-key")
    if idempotency_key is not None and not 1 <= len(idempotency_key) <= KEY_MAX:
        message = f"idempotency-key must have 1 to {KEY_MAX} characters; correct it"
        raise invalid(message, "idempotency-key")
    return Caller(bearer, headers.get("x-headrace-tenant"), idempotency_key)


class Bodies:
    """Reads the bodies of all calls; together they may keep only so much before they are whole."""

    def __init__(self, most: int = ARRIVING_BYTES) -> None:
        self._most = most
        self._kept = 0

    async def read(self, request: Request) -> bytes:
        """The JSON text, without keeping more than a request may have. Raises `HttpError`."""
        _check_kind(request.headers)
        declared = _declared(request.headers)
        waits = "expect" in request.headers  # it sends nothing before we ask for it
        if declared > DRAINED_BYTES or (declared > MAX_REQUEST_BYTES and waits):
            raise _too_large(declared, close=True)
        parts: list[bytes] = []
        size = kept = 0
        try:
            async with asyncio.timeout(BODY_S):
                async for part in request.stream():
                    size += len(part)
                    if size > DRAINED_BYTES:
                        raise _too_large(size, close=True)
                    if max(size, declared) <= MAX_REQUEST_BYTES:
                        parts.append(part)
                        kept += len(part)
                        self._keep(len(part))
        except TimeoutError:
            if max(size, declared) > MAX_REQUEST_BYTES:
                raise _too_large(max(size, declared), close=True) from None
            message = f"the body did not arrive in {BODY_S:.0f} s; send it again"
            raise HttpError(408, "request_timeout", message, retry=True, close=True) from None
        except ClientDisconnect:
            raise HttpError(400, "disconnected", "the client left", close=True) from None
        finally:
            self._kept -= kept
        if size > MAX_REQUEST_BYTES:
            raise _too_large(size)
        return b"".join(parts)

    def _keep(self, size: int) -> None:
        self._kept += size
        if self._kept > self._most:
            message = f"bodies of {self._most} bytes are arriving already; call again in 1 s"
            info = ErrorInfo(code=ErrorCode.SATURATED, message=message, retry_after_s=1.0)
            raise replace(problem(info), close=True)


def _too_large(size: int, close: bool = False) -> HttpError:
    return replace(too_large(f"the request has at least {size} bytes"), close=close)


def _declared(headers: Mapping[str, str]) -> int:
    length = headers.get("content-length", "")
    return int(length) if length.isdigit() else 0


def _check_kind(headers: Mapping[str, str]) -> None:
    kind, _, options = headers.get("content-type", JSON).partition(";")
    kind = kind.strip().lower()
    if kind != JSON:
        message = f"content-type is {kind[:80]!r}; send {JSON}"
        raise invalid(message, "content-type", status=415)
    charset = _CHARSET.search(options)
    if charset is not None and charset[1].lower() not in ("utf-8", "utf8", "us-ascii"):
        message = f"charset {charset[1][:80]!r} is not taken; send the JSON as UTF-8"
        raise invalid(message, "content-type", status=415)
    encoding = headers.get("content-encoding", "identity").strip().lower()
    if encoding != "identity":
        message = f"content-encoding {encoding[:80]!r} is not taken; send the JSON as it is"
        raise invalid(message, "content-encoding", status=415)
