"""Calls over NATS."""

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncGenerator
from typing import Final, TypeVar

import nats.errors
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from pydantic import TypeAdapter, ValidationError

from contracts import subjects
from contracts.client import CancelReply, ModelList, Refused
from stages.runtime.client.answers import (
    ANSWER,
    CALL_TIMEOUT_S,
    CONNECT_TIMEOUT_S,
    FIRST_ANSWER_S,
    Answer,
    CallerError,
    CannotConnect,
    NoAnswer,
    Request,
    check_size,
    is_repeatable,
    to_json,
)
from stages.runtime.client.caller import Caller
from stages.runtime.client.connection import Connection
from stages.runtime.client.continuing import Broken, Place

AnswerT = TypeVar("AnswerT")
CANCELLED: TypeAdapter[CancelReply | Refused] = TypeAdapter(CancelReply | Refused)
MODELS: TypeAdapter[ModelList | Refused] = TypeAdapter(ModelList | Refused)
SILENCE_S: Final = 3.0  # an egress sends a heartbeat every second when there is nothing else
RESUMED_S: Final = 6.0  # it may wait for a new owner of a queue
REPEATED_S: Final = 6.0  # an ingress that died with the call never answers: it is asked again


class NatsCaller(Caller):
    """One connection and one API key; any number of calls at once.

    It outlives a restart of nats-server, and a stream that breaks or falls silent after `accepted`
    is resumed by itself, at whatever egress ingress picks.
    """

    def __init__(self, url: str, tenant: str, key: str | None) -> None:
        self._connection = Connection(url, tenant, key, CONNECT_TIMEOUT_S, self._broken)
        self._tenant = tenant
        self._headers = {"Authorization": f"Bearer {key}"} if key is not None else None
        self._waiting: set[asyncio.Queue[Msg | None]] = set()

    @classmethod
    async def connect(cls, url: str, tenant: str, key: str | None) -> "NatsCaller":
        """Connect in 3 s or raise `CannotConnect`, `AccessDenied` where the key is not taken.

        The server knows us by tenant and key; a `url` that holds a user and password goes before them.
        """
        caller = cls(url, tenant, key)
        await caller._connection.open()
        return caller

    def _broken(self) -> None:
        for queue in self._waiting:
            queue.put_nowait(None)

    async def close(self) -> None:
        """Disconnect; running calls are cancelled by the service."""
        await self._connection.close()

    def generate(
        self, request: Request, timeout_s: float = CALL_TIMEOUT_S
    ) -> AsyncGenerator[Answer, None]:
        """Continue a text; see `contracts.client.GenerateRequest`."""
        body = to_json(request)
        return self.stream("generate", body, timeout_s, repeatable=is_repeatable(request))

    def chat(
        self, request: Request, timeout_s: float = CALL_TIMEOUT_S
    ) -> AsyncGenerator[Answer, None]:
        """Answer a conversation; see `contracts.client.ChatRequest`."""
        body = to_json(request)
        return self.stream("chat", body, timeout_s, repeatable=is_repeatable(request))

    async def cancel(self, request_id: str) -> CancelReply | Refused:
        """End a request of the same tenant."""
        body = json.dumps({"request_id": request_id}).encode()
        return _parse(CANCELLED, await self._one("cancel", body))

    async def models(self) -> ModelList | Refused:
        """What this tenant may name."""
        return _parse(MODELS, await self._one("models", b"{}"))

    def stream(
        self,
        verb: str,
        body: bytes,
        timeout_s: float = CALL_TIMEOUT_S,
        *,
        repeatable: bool = False,
    ) -> AsyncGenerator[Answer, None]:
        """Any body, unchecked but for its size (tests send broken ones)."""
        until = time.monotonic() + timeout_s
        return self._unbroken(
            lambda: self._once(verb, body, until, REPEATED_S if repeatable else FIRST_ANSWER_S),
            until,
            Place(),
            repeatable=repeatable,
        )

    def _resumed(self, request_id: str, offset: int, until: float) -> AsyncGenerator[Answer, None]:
        body = json.dumps({"request_id": request_id, "offset": offset}).encode()
        return self._once("resume", body, until, RESUMED_S)

    async def _once(
        self, verb: str, body: bytes, until: float, first_s: float
    ) -> AsyncGenerator[Answer, None]:
        async with contextlib.aclosing(self._messages(verb, body, until, first_s)) as messages:
            async for data in messages:
                yield _parse(ANSWER, data)

    async def _one(self, verb: str, body: bytes) -> bytes:
        until = time.monotonic() + FIRST_ANSWER_S
        async with contextlib.aclosing(
            self._messages(verb, body, until, FIRST_ANSWER_S)
        ) as messages:
            return await anext(messages)

    async def _messages(
        self, verb: str, body: bytes, until: float, first_s: float
    ) -> AsyncGenerator[bytes, None]:
        check_size(len(body))
        queue: asyncio.Queue[Msg | None] = asyncio.Queue()

        async def receive(msg: Msg) -> None:
            queue.put_nowait(msg)

        subscription: Subscription | None = None
        try:
            client = await self._connection.ready(min(until, time.monotonic() + FIRST_ANSWER_S))
            self._waiting.add(queue)
            inbox = client.new_inbox()
            subscription = await client.subscribe(inbox, cb=receive)
            subject = subjects.client_call(self._tenant, verb)
            await client.publish(subject, body, reply=inbox, headers=self._headers)
            yield _data(await _next(queue, until, first_s), subject)
            while True:
                yield _data(await _next(queue, until, SILENCE_S), subject)
        except (OSError, nats.errors.Error) as error:
            raise Broken(f"the connection was lost: {error!r}") from None
        finally:
            self._waiting.discard(queue)
            if subscription is not None:
                with contextlib.suppress(OSError, nats.errors.Error):
                    await subscription.unsubscribe()  # the server tells egress that nobody listens


def _data(msg: Msg, subject: str) -> bytes:
    if msg.headers and msg.headers.get("Status") == "503":
        raise CannotConnect(f"nobody serves {subject}; is `headrace up` running?")
    return bytes(msg.data)


async def _next(queue: asyncio.Queue[Msg | None], until: float, silence_s: float) -> Msg:
    """The next message. Raises `Broken` when the connection was, or after silence."""
    left_s = until - time.monotonic()
    try:
        async with asyncio.timeout(min(left_s, silence_s)):
            msg = await queue.get()
    except TimeoutError:
        if left_s <= silence_s or silence_s == FIRST_ANSWER_S:
            raise NoAnswer("no answer came in time; see `headrace status`") from None
        raise Broken(f"nothing came for {silence_s:g} s") from None
    if msg is None:
        raise Broken("the connection to the NATS server was lost; is `headrace up` on?")
    return msg


def _parse(kind: TypeAdapter[AnswerT], data: bytes) -> AnswerT:
    try:
        return kind.validate_json(data)
    except ValidationError as error:
        raise CallerError(f"an unreadable answer: {data[:200]!r}: {error}") from None
