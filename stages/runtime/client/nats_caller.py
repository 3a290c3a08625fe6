"""Calls over NATS."""

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncGenerator
from types import TracebackType
from typing import Final, TypeVar

import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from pydantic import TypeAdapter, ValidationError

from contracts import subjects
from contracts.client import CancelReply, Complete, ModelList, Refused
from stages.runtime.client.answers import (
    ANSWER,
    CALL_TIMEOUT_S,
    CONNECT_TIMEOUT_S,
    FIRST_ANSWER_S,
    AccessDenied,
    Answer,
    CallerError,
    CannotConnect,
    NoAnswer,
    Request,
    check_size,
    to_json,
)

AnswerT = TypeVar("AnswerT")
CANCELLED: TypeAdapter[CancelReply | Refused] = TypeAdapter(CancelReply | Refused)
MODELS: TypeAdapter[ModelList | Refused] = TypeAdapter(ModelList | Refused)
LOST: Final = b""  # stands for: the connection is closed


class NatsCaller:
    """One connection and one API key; any number of calls at once."""

    def __init__(self, client: Client, tenant: str, key: str | None) -> None:
        self._client = client
        self._tenant = tenant
        self._headers = {"Authorization": f"Bearer {key}"} if key is not None else None
        self._waiting: set[asyncio.Queue[Msg | bytes]] = set()

    @classmethod
    async def connect(cls, url: str, tenant: str, key: str | None) -> "NatsCaller":
        """Connect in 3 s or raise `CannotConnect`, `AccessDenied` where the key is not taken.

        The server knows us by tenant and key; a `url` that holds a user and password goes before them.
        """
        caller: NatsCaller | None = None

        async def closed() -> None:
            for queue in caller._waiting if caller is not None else ():
                queue.put_nowait(LOST)

        client = Client()
        try:
            await asyncio.wait_for(
                client.connect(
                    url,
                    **({} if "@" in url or key is None else {"user": tenant, "password": key}),
                    error_cb=_ignore,
                    inbox_prefix=subjects.inbox(tenant),
                    closed_cb=closed,
                    allow_reconnect=False,
                    max_reconnect_attempts=1,  # or a refused connection is tried for minutes
                    reconnect_time_wait=0,
                ),
                CONNECT_TIMEOUT_S,
            )
        except (OSError, TimeoutError, nats.errors.Error) as error:
            await client.close()  # a connection that was refused stays open otherwise
            if "authorization" in str(error).lower():
                raise AccessDenied(
                    f"the NATS server at {url.rpartition('@')[2]} does not take this API key for "
                    f"tenant {tenant!r}: it is unknown, revoked, expired or another tenant's; see "
                    "`headrace keys list`"
                ) from None
            place, why = url.rpartition("@")[2], str(error) or "no answer in time"
            raise CannotConnect(f"no NATS server takes us at {place}: {why}") from None
        caller = cls(client, tenant, key)
        return caller

    async def __aenter__(self) -> "NatsCaller":
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Disconnect; running calls are cancelled by the service."""
        await self._client.close()

    def generate(
        self, request: Request, timeout_s: float = CALL_TIMEOUT_S
    ) -> AsyncGenerator[Answer, None]:
        """Continue a text; see `contracts.client.GenerateRequest`."""
        return self.stream("generate", to_json(request), timeout_s)

    def chat(
        self, request: Request, timeout_s: float = CALL_TIMEOUT_S
    ) -> AsyncGenerator[Answer, None]:
        """Answer a conversation; see `contracts.client.ChatRequest`."""
        return self.stream("chat", to_json(request), timeout_s)

    async def cancel(self, request_id: str) -> CancelReply | Refused:
        """End a request of the same tenant."""
        body = json.dumps({"request_id": request_id}).encode()
        return _parse(CANCELLED, await self._one("cancel", body))

    async def models(self) -> ModelList | Refused:
        """What this tenant may name."""
        return _parse(MODELS, await self._one("models", b"{}"))

    async def stream(
        self, verb: str, body: bytes, timeout_s: float = CALL_TIMEOUT_S
    ) -> AsyncGenerator[Answer, None]:
        """Any body, unchecked but for its size (tests send broken ones)."""
        until = time.monotonic() + timeout_s
        async with contextlib.aclosing(self._messages(verb, body, until)) as messages:
            async for data in messages:
                answer = _parse(ANSWER, data)
                yield answer
                if isinstance(answer, Complete | Refused):
                    return

    async def _one(self, verb: str, body: bytes) -> bytes:
        until = time.monotonic() + FIRST_ANSWER_S
        async with contextlib.aclosing(self._messages(verb, body, until)) as messages:
            return await anext(messages)

    async def _messages(self, verb: str, body: bytes, until: float) -> AsyncGenerator[bytes, None]:
        check_size(len(body))
        queue: asyncio.Queue[Msg | bytes] = asyncio.Queue()

        async def receive(msg: Msg) -> None:
            queue.put_nowait(msg)

        self._waiting.add(queue)
        try:
            inbox = self._client.new_inbox()
            subscription = await self._client.subscribe(inbox, cb=receive)
            subject = subjects.client_call(self._tenant, verb)
            await self._client.publish(subject, body, reply=inbox, headers=self._headers)
            first = min(until, time.monotonic() + FIRST_ANSWER_S)
            yield _data(await _next(queue, first), subject)
            while True:
                yield _data(await _next(queue, until), subject)
        except (OSError, nats.errors.Error) as error:
            raise CannotConnect(f"the connection was lost: {error!r}") from None
        finally:
            self._waiting.discard(queue)
            with contextlib.suppress(OSError, nats.errors.Error, UnboundLocalError):
                await subscription.unsubscribe()  # the server tells egress that nobody listens


def _data(msg: Msg | bytes, subject: str) -> bytes:
    if isinstance(msg, bytes):
        raise CannotConnect("the connection to the NATS server was lost; is `headrace up` on?")
    if msg.headers and msg.headers.get("Status") == "503":
        raise CannotConnect(f"nobody serves {subject}; is `headrace up` running?")
    return bytes(msg.data)


async def _next(queue: asyncio.Queue[Msg | bytes], until: float) -> Msg | bytes:
    if not queue.empty():
        return queue.get_nowait()
    try:
        async with asyncio.timeout(until - time.monotonic()):
            return await queue.get()
    except TimeoutError:
        raise NoAnswer("no answer came in time; see `headrace status`") from None


def _parse(kind: TypeAdapter[AnswerT], data: bytes) -> AnswerT:
    try:
        return kind.validate_json(data)
    except ValidationError as error:
        raise CallerError(f"an unreadable answer: {data[:200]!r}: {error}") from None


async def _ignore(_: Exception) -> None:
    """What matters reaches the calls; a callback that raises would kill the connection."""
