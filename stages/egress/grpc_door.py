"""The gRPC server: turns calls into `ClientCall`s and sessions. No check of a request is made here
that ingress could make, so both doors behave alike."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

import grpc
from google.protobuf.message import Message
from grpc.aio import ServicerContext
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from contracts import headrace_pb2 as pb
from contracts.client import CancelReply, FinishReason, ModelList, Refused
from contracts.errors import HeadraceError
from contracts.internal import ClientCall, Verb
from stages.egress import admission, grpc_wire
from stages.egress.grpc_sink import GrpcSink, set_error
from stages.egress.resuming import Resuming
from stages.egress.session import Session
from stages.egress.sessions import Sessions
from stages.runtime.bus import Bus
from stages.runtime.clock import new_request_id, now_ms

SERVICE: Final = pb.DESCRIPTOR.services_by_name["Headrace"].full_name
OPTIONS: Final = (
    ("grpc.so_reuseport", 1),  # replicas share the port
    ("grpc.max_receive_message_length", 32 << 20),  # above our own limit, which explains itself
    ("grpc.keepalive_time_ms", 20_000),  # a client whose machine vanished is noticed
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
)
# Calls cost memory and time before anyone knows their key: more at once are RESOURCE_EXHAUSTED.
CALLS_AT_ONCE: Final = 4096
LARGE_BYTES: Final = 64 << 10
# A call that its client's deadline ended counts as a timeout, not as a cancellation.
DEADLINE_SLACK_MS: Final = 50.0

RawContext = ServicerContext[bytes, bytes]
Stream = Callable[[bytes, RawContext], Awaitable[None]]
Unary = Callable[[bytes, RawContext], Awaitable[bytes]]
REQUESTS: Final[dict[Verb, type[Message]]] = {
    "generate": pb.GenerateRequest,
    "chat": pb.ChatRequest,
    "resume": pb.ResumeRequest,
    "cancel": pb.CancelRequest,
    "models": pb.ModelsRequest,
}


class GrpcDoor:
    """Serves `headrace.v1.Headrace`, health and reflection on `address` (HOST:PORT)."""

    def __init__(
        self,
        bus: Bus,
        sessions: Sessions,
        resuming: Resuming,
        egress: str,
        address: str,
        buffer_chunks: int,
    ) -> None:
        self._bus = bus
        self._sessions = sessions
        self._resuming = resuming
        self._egress = egress
        self._address = address
        self.buffer_chunks = buffer_chunks  # of calls that come from now on
        self._health = health.aio.HealthServicer()  # type: ignore[attr-defined]
        self._server: grpc.aio.Server | None = None

    async def start(self) -> None:
        """Listen; raises `RuntimeError` when the port is taken by another program."""
        server = grpc.aio.server(options=OPTIONS, maximum_concurrent_rpcs=CALLS_AT_ONCE)
        server.add_generic_rpc_handlers((self._handlers(),))
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        names = (SERVICE, health_pb2.DESCRIPTOR.services_by_name["Health"].full_name)
        reflection.enable_server_reflection((*names, reflection.SERVICE_NAME), server)
        server.add_insecure_port(self._address)
        await server.start()
        self._server = server
        for name in ("", *names):
            await self._health.set(name, health_pb2.HealthCheckResponse.SERVING)

    async def refuse_new(self) -> None:
        """Say NOT_SERVING; calls that come all the same are refused as UNAVAILABLE."""
        await self._health.enter_graceful_shutdown()

    async def stop(self, grace_s: float) -> None:
        """Close the port at once, running calls after `grace_s`."""
        if self._server is not None:
            await self._server.stop(grace_s)

    def _handlers(self) -> "grpc.GenericRpcHandler[bytes, bytes]":
        # Bytes in and out: what cannot be parsed gets an answer of ours, not gRPC's INTERNAL.
        return grpc.method_handlers_generic_handler(
            SERVICE,
            {
                "Generate": grpc.unary_stream_rpc_method_handler(self._streaming("generate")),
                "Chat": grpc.unary_stream_rpc_method_handler(self._streaming("chat")),
                "Resume": grpc.unary_stream_rpc_method_handler(self._resume),
                "Cancel": grpc.unary_unary_rpc_method_handler(self._answering("cancel")),
                "Models": grpc.unary_unary_rpc_method_handler(self._answering("models")),
            },
        )

    def _streaming(self, verb: Verb) -> Stream:
        async def handle(raw: bytes, context: RawContext) -> None:
            request_id = new_request_id()
            deadline_ms = _deadline_ms(context)
            sink = GrpcSink(request_id, self.buffer_chunks)
            try:
                call = await self._call(verb, request_id, raw, context)
                now = now_ms()
                self._sessions.open(Session(request_id, "grpc", now, now), sink)
            except HeadraceError as error:
                set_error(context, Refused(request_id=request_id, error=error.info))
                return
            self._bus.spawn(self._admit(request_id, call))
            try:
                await sink.run(context)
            finally:  # a no-op unless the client left before the end
                late = deadline_ms is not None and now_ms() > deadline_ms - DEADLINE_SLACK_MS
                reason = FinishReason.TIMEOUT if late else FinishReason.CANCELLED
                self._sessions.leave(sink, reason)

        return handle

    async def _resume(self, raw: bytes, context: RawContext) -> None:
        request_id = new_request_id()
        try:
            call = await self._call("resume", request_id, raw, context)
            request_id, tenant = await admission.who_resumes(self._bus, call)
        except HeadraceError as error:
            set_error(context, Refused(request_id=request_id, error=error.info))
            return
        offset = int(grpc_wire.read(pb.ResumeRequest, raw).offset)
        sink = GrpcSink(request_id, self.buffer_chunks)
        self._resuming.start(request_id, tenant, offset, sink)
        try:
            await sink.run(context)
        finally:
            self._sessions.leave(sink)

    def _answering(self, verb: Verb) -> Unary:
        async def handle(raw: bytes, context: RawContext) -> bytes:
            request_id = new_request_id()
            try:
                call = await self._call(verb, request_id, raw, context)
                reply = await admission.ask(self._bus, call)
            except HeadraceError as error:
                set_error(context, Refused(request_id=request_id, error=error.info))
                return b""
            return _unary_answer(verb, reply).SerializeToString()

        return handle

    async def _call(self, verb: Verb, request_id: str, raw: bytes, context: RawContext) -> bytes:
        """What ingress is asked. A large body is converted beside the loop that all streams use."""
        received_ms = now_ms()
        metadata = {str(key): value for key, value in context.invocation_metadata() or ()}
        deadline_ms = _deadline_ms(context) if verb in ("generate", "chat") else None

        def convert() -> bytes:
            message = grpc_wire.read(REQUESTS[verb], raw)
            call = ClientCall(
                request_id=request_id,
                verb=verb,
                egress=self._egress,
                door="grpc",
                api_key=_bearer(metadata.get("authorization")),
                tenant=metadata.get("x-headrace-tenant"),
                body=grpc_wire.body(message, deadline_ms),
                received_ms=received_ms,
            )
            encoded = call.model_dump_json().encode()
            grpc_wire.check_size(len(encoded))  # quotes and newlines grow on their way
            return encoded

        return await asyncio.to_thread(convert) if len(raw) > LARGE_BYTES else convert()

    async def _admit(self, request_id: str, call: bytes) -> None:
        """Ask ingress and settle the session, whatever happens."""
        await self._resuming.settle(await admission.admit(self._bus, request_id, call))


def _deadline_ms(context: RawContext) -> int | None:
    remaining_s: float | None = context.time_remaining()
    bounded = remaining_s is not None and remaining_s < 10 * 365 * 86_400
    return int(now_ms() + remaining_s * 1000) if bounded and remaining_s is not None else None


def _bearer(value: Any) -> str | None:
    """The key of `Bearer KEY`; ingress explains what is missing."""
    scheme, _, key = str(value or "").partition(" ")
    return key.strip() or None if scheme.lower() == "bearer" else None


def _unary_answer(verb: Verb, reply: bytes) -> Message:
    if verb == "cancel":
        return pb.CancelReply(request_id=CancelReply.model_validate_json(reply).request_id)
    cards = ModelList.model_validate_json(reply).models
    return pb.ModelList(models=[pb.ModelCard(**card.model_dump()) for card in cards])
