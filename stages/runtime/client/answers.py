"""What a caller gets, the errors that are not answers, and the limits of waiting."""

import json
from collections.abc import Mapping
from typing import Annotated, Any, Final

from pydantic import Field, TypeAdapter

from contracts import headrace_pb2 as pb
from contracts.client import (
    MAX_REQUEST_BYTES,
    Accepted,
    CallOptions,
    Chunk,
    Complete,
    Decision,
    Queued,
    Refused,
)
from stages.runtime.client.protobuf import plain

Answer = Accepted | Queued | Chunk | Complete | Refused
Request = CallOptions | Mapping[str, Any]
ANSWER: TypeAdapter[Answer] = TypeAdapter(Annotated[Answer, Field(discriminator="type")])

CONNECT_TIMEOUT_S: Final = 3.0
FIRST_ANSWER_S: Final = 15.0  # the service itself gives up admission after 10 s
CALL_TIMEOUT_S: Final = 600.0


class CallerError(Exception):
    """The call got no answer of the service; the message says why and what to do."""


class CannotConnect(CallerError):  # noqa: N818 - reads as what happened
    """Nobody is there, or the connection was lost."""


class AccessDenied(CallerError):  # noqa: N818
    """The door does not take this API key."""


class NoAnswer(CallerError):  # noqa: N818
    """A wait's limit has passed."""


class TooLarge(CallerError):  # noqa: N818
    """The request is larger than the bus carries; nothing was sent."""


def check_size(size: int) -> None:
    """Raises `TooLarge` before a message could break the connection."""
    if size > MAX_REQUEST_BYTES:
        raise TooLarge(
            f"the request has {size} bytes; at most {MAX_REQUEST_BYTES} are possible: shorten it"
        )


def fields(request: Request) -> dict[str, Any]:
    """What was set, as plain values. A mapping is passed on unchecked."""
    if isinstance(request, CallOptions):
        return request.model_dump(mode="json", exclude_unset=True, exclude_none=True)
    return dict(request)


def is_repeatable(request: Request) -> bool:
    """Whether it has an idempotency key: sent again it is the same request."""
    return bool(fields(request).get("idempotency_key"))


def to_json(request: Request) -> bytes:
    """The request as the NATS door takes it."""
    return json.dumps(fields(request), ensure_ascii=False).encode()


def from_proto(answer: pb.Answer) -> Answer:
    """One message of a gRPC stream."""
    match answer.WhichOneof("kind"):
        case "chunk":
            chunk = answer.chunk
            ids = list(chunk.token_ids) or None
            return Chunk(
                seq=chunk.seq,
                offset=chunk.offset,
                text=chunk.text,
                token_ids=ids,
                next_offset=chunk.next_offset,
            )
        case "accepted":
            decision = Decision(**plain(answer.accepted.decision))
            return Accepted(request_id=answer.accepted.request_id, decision=decision)
        case "queued":
            return Queued(position=answer.queued.position)
        case "complete":
            complete = plain(answer.complete)
            stages = complete["timings"]["stages"]
            complete["timings"]["stages"] = {each["stage"]: each["ms"] for each in stages}
            return Complete.model_validate(complete)
        case other:
            raise CallerError(f"an answer of unknown kind {other!r}; use a newer client")
