"""Between protobuf and the client schema: requests in, answers and statuses out."""

import json
from typing import Any, Final, TypeVar

import grpc
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import DecodeError, Message
from google.protobuf.unknown_fields import UnknownFieldSet

from contracts import headrace_pb2 as pb
from contracts.client import MAX_REQUEST_BYTES, Accepted, Complete, Queued, Timings
from contracts.errors import ERROR_TABLE, ErrorCode, ErrorInfo, HeadraceError
from stages.egress.output import ChunkOut
from stages.runtime.client.protobuf import plain

MessageT = TypeVar("MessageT", bound=Message)
Metadata = tuple[tuple[str, str | bytes], ...]
ERROR_KEY: Final = "headrace-error-bin"
REQUEST_KEY: Final = "headrace-request-id"
USAGE_KEY: Final = "headrace-usage"
DETAILS_KEY: Final = "grpc-status-details-bin"
RETRY_TYPE: Final = "type.googleapis.com/google.rpc.RetryInfo"


def read(kind: type[MessageT], raw: bytes) -> MessageT:
    """Parse a request; raises `HeadraceError` for what is too large, unreadable or unknown."""
    check_size(len(raw))
    try:
        message = kind.FromString(raw)
    except DecodeError as error:
        raise HeadraceError(
            ErrorCode.INVALID_REQUEST, f"not a valid {kind.DESCRIPTOR.name}: {error}"
        ) from None
    _refuse_unknown(message)
    return message


def check_size(size: int) -> None:
    """Raises `HeadraceError` for a request that the bus could not carry."""
    if size > MAX_REQUEST_BYTES:
        raise HeadraceError(
            ErrorCode.INVALID_REQUEST,
            f"the request has {size} bytes; at most {MAX_REQUEST_BYTES} are possible: shorten it",
        )


def _refuse_unknown(message: Message) -> None:
    """As at the JSON door: an option that would be ignored is a mistake."""
    unknown = UnknownFieldSet(message)
    if len(unknown):
        number, name = unknown[0].field_number, message.DESCRIPTOR.name
        raise HeadraceError(
            ErrorCode.INVALID_REQUEST,
            f"{name} has no field number {number}; use the service's headrace.proto",
        )
    for turn in getattr(message, "messages", ()):
        _refuse_unknown(turn)


def body(message: Message, deadline_unix_ms: int | None) -> str:
    """The request as JSON text; the call's own deadline counts like the field."""
    fields = plain(message)
    if deadline_unix_ms is not None:
        named = fields.get("deadline_unix_ms", deadline_unix_ms)
        fields["deadline_unix_ms"] = min(named, deadline_unix_ms)
    return json.dumps(fields, ensure_ascii=False)


def answer(message: Accepted | Queued | ChunkOut | Complete) -> pb.Answer:
    """One message of the stream."""
    match message:
        case ChunkOut(seq, offset, text, ids, after):
            chunk = pb.Chunk(seq=seq, offset=offset, text=text, token_ids=ids, next_offset=after)
            return pb.Answer(chunk=chunk)
        case Accepted():
            decision = pb.Decision(**message.decision.model_dump())
            return pb.Answer(accepted=pb.Accepted(request_id=message.request_id, decision=decision))
        case Queued():
            return pb.Answer(queued=pb.Queued(position=message.position))
        case Complete():
            return pb.Answer(complete=_complete(message))


def _complete(message: Complete) -> pb.Complete:
    return pb.Complete(
        request_id=message.request_id,
        finish_reason=message.finish_reason.value,
        usage=pb.Usage(**message.usage.model_dump()),
        cost=pb.Cost(**message.cost.model_dump()),
        timings=_timings(message.timings),
        decision=pb.Decision(**message.decision.model_dump()),
        error=pb.ErrorInfo(**_fields(message.error)) if message.error is not None else None,
        resumed=message.resumed,
        fingerprint=message.fingerprint,
    )


def _timings(timings: Timings) -> pb.Timings:
    stages = [pb.StageTime(stage=stage, ms=ms) for stage, ms in timings.stages.items()]
    return pb.Timings(**timings.model_dump(exclude={"stages"}), stages=stages)


def _fields(error: ErrorInfo) -> dict[str, Any]:
    return error.model_dump(mode="json", exclude_none=True)


def status_code(error: ErrorInfo) -> grpc.StatusCode:
    """From the error table."""
    code: grpc.StatusCode = grpc.StatusCode[ERROR_TABLE[error.code].grpc]
    return code


def error_trailers(request_id: str, error: ErrorInfo) -> Metadata:
    """The whole error for programs, and RetryInfo where calling again can help."""
    code, _ = status_code(error).value
    details = pb.StatusDetails(code=code, message=error.message)
    if ERROR_TABLE[error.code].retry:
        delay = Duration()
        delay.FromMilliseconds(int((error.retry_after_s or 1.0) * 1000))
        value = pb.RetryInfo(retry_delay=delay).SerializeToString()
        details.details.append(AnyMessage(type_url=RETRY_TYPE, value=value))
    return (
        (REQUEST_KEY, request_id),
        (ERROR_KEY, error.model_dump_json(exclude_none=True).encode()),
        (DETAILS_KEY, details.SerializeToString()),
    )


def usage_trailers(message: Complete) -> Metadata:
    """Usage beside the last message, for interceptors that do not read messages."""
    return ((REQUEST_KEY, message.request_id), (USAGE_KEY, message.usage.model_dump_json()))
