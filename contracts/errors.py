"""The one error table: every refusal and every failed terminal carries one of these codes."""

from dataclasses import dataclass
from enum import StrEnum

from pydantic import BaseModel, ConfigDict, Field


class ErrorCode(StrEnum):
    """What went wrong, in the caller's terms."""

    INVALID_REQUEST = "invalid_request"
    CONTEXT_LENGTH_EXCEEDED = "context_length_exceeded"
    UNAUTHENTICATED = "unauthenticated"
    PERMISSION_DENIED = "permission_denied"
    NOT_FOUND = "not_found"
    CONFLICT = "conflict"
    SATURATED = "saturated"
    NO_CAPACITY = "no_capacity"
    SHUTTING_DOWN = "shutting_down"
    DEADLINE_EXCEEDED = "deadline_exceeded"
    INTERNAL = "internal"


@dataclass(frozen=True)
class ErrorRow:
    """How one code is said over HTTP and gRPC, and whether calling again can help."""

    http: int
    grpc: str
    retry: bool


ERROR_TABLE: dict[ErrorCode, ErrorRow] = {
    ErrorCode.INVALID_REQUEST: ErrorRow(400, "INVALID_ARGUMENT", retry=False),
    ErrorCode.CONTEXT_LENGTH_EXCEEDED: ErrorRow(400, "INVALID_ARGUMENT", retry=False),
    ErrorCode.UNAUTHENTICATED: ErrorRow(401, "UNAUTHENTICATED", retry=False),
    ErrorCode.PERMISSION_DENIED: ErrorRow(403, "PERMISSION_DENIED", retry=False),
    ErrorCode.NOT_FOUND: ErrorRow(404, "NOT_FOUND", retry=False),
    ErrorCode.CONFLICT: ErrorRow(409, "ALREADY_EXISTS", retry=False),
    ErrorCode.SATURATED: ErrorRow(429, "RESOURCE_EXHAUSTED", retry=True),
    ErrorCode.NO_CAPACITY: ErrorRow(503, "UNAVAILABLE", retry=True),
    ErrorCode.SHUTTING_DOWN: ErrorRow(503, "UNAVAILABLE", retry=True),
    ErrorCode.DEADLINE_EXCEEDED: ErrorRow(504, "DEADLINE_EXCEEDED", retry=False),
    ErrorCode.INTERNAL: ErrorRow(500, "INTERNAL", retry=True),
}


class ErrorInfo(BaseModel):
    """An error as the caller reads it: the field, the value, what was expected, what to do."""

    model_config = ConfigDict(frozen=True)

    code: ErrorCode
    message: str
    field: str | None = Field(None, description="dotted path of the offending field, if one is")
    retry_after_s: float | None = Field(None, description="seconds to wait before calling again")
    position: int | None = Field(None, description="queue length met, when saturated")


class HeadraceError(Exception):
    """Raised inside a stage; its `info` is what the caller is told."""

    def __init__(
        self,
        code: ErrorCode,
        message: str,
        *,
        field: str | None = None,
        retry_after_s: float | None = None,
        position: int | None = None,
    ) -> None:
        super().__init__(message)
        self.info = ErrorInfo(
            code=code,
            message=message,
            field=field,
            retry_after_s=retry_after_s,
            position=position,
        )
