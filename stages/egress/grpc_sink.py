"""A gRPC client's stream: a bounded buffer that the call's own handler empties."""

import asyncio
from collections import deque

import grpc
from grpc.aio import ServicerContext

from contracts.client import Accepted, Complete, FinishReason, Queued, Refused
from contracts.errors import ErrorInfo
from stages.egress import grpc_wire
from stages.egress.output import ChunkOut

Out = Accepted | Queued | ChunkOut | Complete | Refused


class GrpcSink:
    """`limit` chunks may wait for the client; one more and it is given up."""

    def __init__(self, request_id: str, limit: int) -> None:
        self._request_id = request_id
        self._limit = limit
        self._waiting: deque[Out] = deque()
        self._ready = asyncio.Event()

    async def send(self, message: Accepted | Queued | Complete | Refused) -> None:
        """Queue a message; these few are never too many."""
        self._waiting.append(message)
        self._ready.set()

    async def chunk(self, chunk: ChunkOut) -> bool:
        """Queue text; False when the client is too far behind."""
        self._waiting.append(chunk)
        self._ready.set()
        return len(self._waiting) <= self._limit

    def cut_off(self, error: ErrorInfo) -> None:
        """What waits still goes out, then the error's status."""
        self._waiting.append(Refused(request_id=self._request_id, error=error))
        self._ready.set()

    def first_unsent(self) -> int | None:
        """Offset of the first chunk that gRPC has not taken."""
        return next((each.offset for each in self._waiting if isinstance(each, ChunkOut)), None)

    async def run(self, context: "ServicerContext[bytes, bytes]") -> None:
        """Write until the terminal message has gone out with its status."""
        while True:
            while not self._waiting:
                self._ready.clear()
                await self._ready.wait()
            message = self._waiting[0]
            if isinstance(message, Refused):
                set_error(context, message)
                return
            await context.write(grpc_wire.answer(message).SerializeToString())
            self._waiting.popleft()
            if isinstance(message, Complete):
                _set_outcome(context, message)
                return


def set_error(context: "ServicerContext[bytes, bytes]", refused: Refused) -> None:
    """End the call with the status of an error; the handler returns afterwards."""
    context.set_code(grpc_wire.status_code(refused.error))
    context.set_details(refused.error.message)
    context.set_trailing_metadata(grpc_wire.error_trailers(refused.request_id, refused.error))


def _set_outcome(context: "ServicerContext[bytes, bytes]", complete: Complete) -> None:
    trailers = grpc_wire.usage_trailers(complete)
    if complete.error is not None:
        context.set_code(grpc_wire.status_code(complete.error))
        context.set_details(complete.error.message)
        trailers += grpc_wire.error_trailers(complete.request_id, complete.error)[1:]
    elif complete.finish_reason is FinishReason.CANCELLED:
        context.set_code(grpc.StatusCode.CANCELLED)
        context.set_details("cancelled by a call of its tenant")
    context.set_trailing_metadata(trailers)
