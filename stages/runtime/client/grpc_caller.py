"""Calls over gRPC."""

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Callable
from typing import Any, Final, TypeVar

import grpc
from google.protobuf.message import Message

from contracts import headrace_pb2 as pb
from contracts.client import CancelReply, Complete, ModelCard, ModelList, Refused
from contracts.errors import ErrorInfo
from stages.runtime.client.answers import (
    CALL_TIMEOUT_S,
    CONNECT_TIMEOUT_S,
    FIRST_ANSWER_S,
    Answer,
    CallerError,
    CannotConnect,
    NoAnswer,
    Request,
    check_size,
    fields,
    from_proto,
)
from stages.runtime.client.caller import Caller
from stages.runtime.client.continuing import Broken, Place
from stages.runtime.client.protobuf import plain

SERVICE: Final = pb.DESCRIPTOR.services_by_name["Headrace"].full_name
OPTIONS: Final = (
    ("grpc.max_receive_message_length", 32 << 20),
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.initial_reconnect_backoff_ms", 100),  # another egress listens on the same port
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
)
STATUS_S: Final = 2.0

MessageT = TypeVar("MessageT", bound=Message)


class GrpcCaller(Caller):
    """One channel and one API key; any number of calls at once.

    A stream that breaks after `accepted` is resumed by itself, at whatever egress serves the port.
    """

    def __init__(self, channel: grpc.aio.Channel, key: str | None, tenant: str | None) -> None:
        self._channel = channel
        pairs = {"authorization": key and f"Bearer {key}", "x-headrace-tenant": tenant}
        self._metadata = tuple((name, value) for name, value in pairs.items() if value)

    @classmethod
    async def connect(
        cls, address: str, key: str | None, tenant: str | None = None
    ) -> "GrpcCaller":
        """Connect to HOST:PORT in 3 s or raise `CannotConnect`. Without tenant: the key's own."""
        channel = grpc.aio.insecure_channel(address, options=OPTIONS)
        try:
            await asyncio.wait_for(_ready(channel), CONNECT_TIMEOUT_S)
        except (TimeoutError, ConnectionError):
            await channel.close(None)
            raise CannotConnect(f"no gRPC server answers at {address}") from None
        return cls(channel, key, tenant)

    async def close(self) -> None:
        """Disconnect; running calls are cancelled."""
        await self._channel.close(None)

    def generate(
        self, request: Request, timeout_s: float = CALL_TIMEOUT_S
    ) -> AsyncGenerator[Answer, None]:
        """Continue a text; see `contracts.client.GenerateRequest`."""
        message = pb.GenerateRequest(**fields(request))
        repeatable = message.HasField("idempotency_key")
        return self.stream(
            "generate", message.SerializeToString(), timeout_s, repeatable=repeatable
        )

    def chat(
        self, request: Request, timeout_s: float = CALL_TIMEOUT_S
    ) -> AsyncGenerator[Answer, None]:
        """Answer a conversation; see `contracts.client.ChatRequest`."""
        message = pb.ChatRequest(**fields(request))
        repeatable = message.HasField("idempotency_key")
        return self.stream("chat", message.SerializeToString(), timeout_s, repeatable=repeatable)

    async def cancel(self, request_id: str) -> CancelReply | Refused:
        """End a request of the same tenant."""
        request = pb.CancelRequest(request_id=request_id)
        reply = await self._unary("Cancel", request, pb.CancelReply.FromString)
        if isinstance(reply, Refused):
            return reply
        return CancelReply(request_id=reply.request_id)

    async def models(self) -> ModelList | Refused:
        """What this tenant may name."""
        reply = await self._unary("Models", pb.ModelsRequest(), pb.ModelList.FromString)
        if isinstance(reply, Refused):
            return reply
        return ModelList(models=[ModelCard(**plain(card)) for card in reply.models])

    def stream(
        self,
        verb: str,
        message: bytes,
        timeout_s: float = CALL_TIMEOUT_S,
        deadline_s: float | None = None,
        *,
        repeatable: bool = False,
    ) -> AsyncGenerator[Answer, None]:
        """Any bytes, unchecked but for their size. `deadline_s` is sent as gRPC's own deadline."""
        until = time.monotonic() + timeout_s
        return self._unbroken(
            lambda: self._once(verb, message, until, deadline_s),
            until,
            Place(),
            repeatable=repeatable,
        )

    def _resumed(self, request_id: str, offset: int, until: float) -> AsyncGenerator[Answer, None]:
        message = pb.ResumeRequest(request_id=request_id, offset=offset)
        return self._once("resume", message.SerializeToString(), until, None)

    async def _once(
        self, verb: str, message: bytes, until: float, deadline_s: float | None
    ) -> AsyncGenerator[Answer, None]:
        check_size(len(message))
        path = f"/{SERVICE}/{verb.capitalize()}"
        method = self._channel.unary_stream(path, None, pb.Answer.FromString)
        call = method(message, metadata=self._metadata, timeout=deadline_s)
        limit = min(until, time.monotonic() + FIRST_ANSWER_S)
        try:
            while isinstance(read := await _within(call.read(), limit), pb.Answer):  # else EOF
                limit = until
                answer = from_proto(read)
                yield answer
                if isinstance(answer, Complete):
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(call.code(), STATUS_S)
                    return
        except grpc.aio.AioRpcError as error:
            yield _refusal(error)
        else:
            raise Broken("the stream ended without `complete`")
        finally:
            call.cancel()

    async def _unary(
        self, name: str, request: Message, parse: Callable[[bytes], MessageT]
    ) -> MessageT | Refused:
        method = self._channel.unary_unary(f"/{SERVICE}/{name}", None, parse)
        data = request.SerializeToString()
        try:
            reply: MessageT = await method(data, metadata=self._metadata, timeout=FIRST_ANSWER_S)
        except grpc.aio.AioRpcError as error:
            return _refusal(error)
        return reply


async def _ready(channel: grpc.aio.Channel) -> None:
    while (state := channel.get_state(try_to_connect=True)) is not grpc.ChannelConnectivity.READY:
        if state is grpc.ChannelConnectivity.TRANSIENT_FAILURE:
            raise ConnectionError
        await channel.wait_for_state_change(state)


async def _within(read: Any, until: float) -> Any:
    try:
        async with asyncio.timeout(until - time.monotonic()):
            return await read
    except TimeoutError:
        raise NoAnswer("no answer came in time; see `headrace status`") from None


def _refusal(error: grpc.aio.AioRpcError) -> Refused:
    """The service's own error, or a `CallerError` for what gRPC says by itself."""
    metadata: Any = error.trailing_metadata() or ()
    trailers = {str(key): value for key, value in metadata}
    info = trailers.get("headrace-error-bin")
    if info is not None:
        request_id = str(trailers.get("headrace-request-id", ""))
        return Refused(request_id=request_id, error=ErrorInfo.model_validate_json(info))
    message = f"{error.code().name}: {error.details()}"
    if error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED):
        raise Broken(message) from None
    if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
        raise NoAnswer(message) from None
    raise CallerError(message) from None
