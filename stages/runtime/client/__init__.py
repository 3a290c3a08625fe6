"""Headrace from the caller's side, over NATS or gRPC alike. For the CLI, the benches and tests.

    async with await NatsCaller.connect("nats://127.0.0.1:4222", "demo", key) as caller:
        async for answer in caller.chat(ChatRequest(messages=[Message(role="user", content="Hi")])):
            ...

A stream ends with `Complete` or `Refused`; one that breaks in between is resumed. Leaving the loop early and closing the generator
(`contextlib.aclosing`) cancels the request. What is not an answer of the service is a `CallerError`.
"""

from stages.runtime.client.answers import (
    AccessDenied,
    Answer,
    CallerError,
    CannotConnect,
    NoAnswer,
    TooLarge,
)
from stages.runtime.client.grpc_caller import GrpcCaller
from stages.runtime.client.nats_caller import NatsCaller

__all__ = [
    "AccessDenied",
    "Answer",
    "CallerError",
    "CannotConnect",
    "GrpcCaller",
    "NatsCaller",
    "NoAnswer",
    "TooLarge",
]
