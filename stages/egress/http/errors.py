"""Errors as HTTP says them: a status, headers and `{"error": {message, type, param, code}}`."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from pydantic_core import to_json
from starlette.responses import Response

from contracts.errors import ERROR_TABLE, ErrorCode, ErrorInfo

JSON: Final = "application/json"
UNSUPPORTED: Final = "unsupported_parameter"
_RETRY_S: Final = 1.0
_TYPES: Final = {
    401: "authentication_error",
    403: "permission_error",
    429: "rate_limit_error",
}


@dataclass(eq=False)
class HttpError(Exception):
    """Why a call gets no answer. `retry` is None where the client's own rule is as good as ours."""

    status: int
    code: str
    message: str
    param: str | None = None
    retry: bool | None = False
    retry_after_s: float | None = None
    close: bool = False  # the rest of the request is not read

    def __post_init__(self) -> None:
        super().__init__(self.message)

    @property
    def envelope(self) -> dict[str, Any]:
        """The error object, as in a body and in a stream."""
        kind = "server_error" if self.status >= 500 else _TYPES.get(self.status)
        return {
            "error": {
                "message": self.message,
                "type": kind or "invalid_request_error",
                "param": self.param,
                "code": self.code,
            }
        }

    def response(self, request_id: str, headers: Mapping[str, str] | None = None) -> Response:
        """The whole answer."""
        told = {"x-request-id": request_id, **(headers or {})}
        if self.retry is not None:
            told["x-should-retry"] = "true" if self.retry else "false"
        if self.retry:
            seconds = self.retry_after_s or _RETRY_S
            told["retry-after"] = str(math.ceil(seconds))
            told["retry-after-ms"] = str(math.ceil(seconds * 1000))
        if self.status == 401:
            told["www-authenticate"] = "Bearer"
        if self.close:
            told["connection"] = "close"
        return Response(to_json(self.envelope), self.status, told, JSON)


def problem(info: ErrorInfo, names: Mapping[str, str] | None = None) -> HttpError:
    """An error of the table. `names`: our field → what the caller wrote instead."""
    row = ERROR_TABLE[info.code]
    message, param = info.message, info.field
    if param is not None and names and param in names:
        message = message.replace(param, names[param], 1)
        param = names[param]
    return HttpError(
        row.http,
        _code(info),
        message,
        param,
        # Doing the work again may fail again: clients have their own patience for a 500.
        None if info.code is ErrorCode.INTERNAL else row.retry,
        info.retry_after_s,
    )


def _code(info: ErrorInfo) -> str:
    """As OpenAI's clients know them, where they do."""
    if info.code is ErrorCode.UNAUTHENTICATED:
        return "invalid_api_key"
    if info.code is ErrorCode.NOT_FOUND and info.field == "model":
        return "model_not_found"
    return info.code.value


def invalid(message: str, param: str | None = None, status: int = 400) -> HttpError:
    """The caller's mistake."""
    return HttpError(status, ErrorCode.INVALID_REQUEST.value, message, param)


def unsupported(param: str, message: str) -> HttpError:
    """Something that OpenAI's API has and this door does not yet."""
    return HttpError(400, UNSUPPORTED, message, param)
