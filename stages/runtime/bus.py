"""The bus as stages use it: typed request/reply with deadlines, served handlers, durable stores."""

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, TypeVar

import nats.errors
import nats.js.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.js import JetStreamContext
from pydantic import BaseModel, TypeAdapter, ValidationError
from tenacity import AsyncRetrying, retry_if_exception, stop_after_delay, wait_exponential_jitter

from contracts.errors import ErrorCode, ErrorInfo, HeadraceError
from stages.runtime.launch import BusAddress
from stages.runtime.wire import WireClient

ERROR_HEADER: Final = "Headrace-Error"
CONNECT_TIMEOUT_S: Final = 5.0
_STORE_BUSY: Final = 10158  # the same Msg-Id is still being stored: ask again

AnswerT = TypeVar("AnswerT", bound=BaseModel)
CallT = TypeVar("CallT")
Handler = Callable[[CallT, Msg], Awaitable[BaseModel | bytes | None]]

log = logging.getLogger("headrace.bus")


class UnservedError(HeadraceError):
    """Nobody serves the subject now: nothing has heard the question."""


class UnansweredError(HeadraceError):
    """No answer came in time: whether the question was heard is unclear."""


class Bus:
    """One NATS connection. Reconnects for ever; every wait has a deadline."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.js: JetStreamContext = client.jetstream(timeout=2.0)
        self._reconnected_s: float | None = None
        self._away = False
        self._tasks: set[asyncio.Task[None]] = set()

    @classmethod
    async def connect(cls, address: BusAddress, name: str) -> "Bus":
        """Connect within 5 s or raise `TimeoutError`, `OSError` or `nats.errors.Error`."""
        bus: Bus | None = None

        async def disconnected() -> None:
            if bus is not None:
                bus._away = True

        async def reconnected() -> None:
            if bus is not None:
                bus._reconnected_s, bus._away = time.monotonic(), False

        client = WireClient()
        await asyncio.wait_for(
            client.connect(
                address.url,
                user=address.user,
                password=address.password,
                name=name,
                max_reconnect_attempts=-1,
                reconnect_time_wait=0.2,  # type: ignore[arg-type]  # it sleeps so long
                ping_interval=3,
                error_cb=_report,
                pending_size=16 << 20,
                inbox_prefix=address.inbox,
                disconnected_cb=disconnected,
                reconnected_cb=reconnected,
            ),
            CONNECT_TIMEOUT_S,  # without it the first connect would be tried for ever
        )
        bus = cls(client)
        return bus

    def connected_for_s(self) -> float:
        """How long this connection has held since it was last lost; infinite if it never was.

        nats-py calls itself connected before it tells us, and what waited for the connection is
        answered by then (503 from inboxes that are not back): until it has told us this is 0.
        """
        if self._away or not self.client.is_connected:
            return 0.0
        return math.inf if self._reconnected_s is None else time.monotonic() - self._reconnected_s

    async def publish(
        self,
        subject: str,
        message: BaseModel | bytes,
        *,
        reply: str = "",
        headers: dict[str, str] | None = None,
    ) -> None:
        """Send without waiting for anyone to receive it."""
        await self.client.publish(subject, _encode(message), reply=reply, headers=headers)

    async def request_bytes(
        self, subject: str, message: BaseModel | bytes, timeout_s: float
    ) -> bytes:
        """Ask and return the raw answer; raises the `HeadraceError` that the other side raised."""
        try:
            reply = await self.client.request(subject, _encode(message), timeout=timeout_s)
        except nats.errors.NoRespondersError:
            raise UnservedError(
                ErrorCode.NO_CAPACITY, f"nobody serves {subject} now; try again", retry_after_s=1.0
            ) from None
        except (TimeoutError, nats.errors.TimeoutError):
            raise UnansweredError(
                ErrorCode.DEADLINE_EXCEEDED, f"no answer from {subject} in {timeout_s:.1f} s"
            ) from None
        if reply.headers and ERROR_HEADER in reply.headers:
            info = ErrorInfo.model_validate_json(reply.data)
            error = HeadraceError(info.code, info.message)
            error.info = info
            raise error
        return reply.data

    async def request(
        self, subject: str, message: BaseModel | bytes, answer: type[AnswerT], timeout_s: float
    ) -> AnswerT:
        """Ask and validate the answer."""
        return answer.model_validate_json(await self.request_bytes(subject, message, timeout_s))

    async def serve(
        self,
        subject: str,
        call: type[BaseModel] | TypeAdapter[Any],
        handler: Handler[Any],
        queue: str = "",
    ) -> Subscription:
        """Answer requests, each in its own task, with a model, bytes or an error.

        A handler that returns None has passed the reply subject on.
        """
        parse = call.validate_json if isinstance(call, TypeAdapter) else call.model_validate_json

        async def answer(msg: Msg) -> None:
            try:
                reply = await handler(parse(msg.data), msg)
            except HeadraceError as error:
                await self.refuse(msg.reply, error.info)
            except ValidationError as error:
                await self.refuse(msg.reply, _unreadable(subject, error))
            except Exception:
                log.exception("handler of %s failed", subject)
                await self.refuse(
                    msg.reply,
                    ErrorInfo(code=ErrorCode.INTERNAL, message=f"{subject} failed; see its log"),
                )
            else:
                if reply is not None and msg.reply:
                    await self.publish(msg.reply, reply)

        async def receive(msg: Msg) -> None:
            self.spawn(answer(msg))

        return await self.client.subscribe(subject, queue=queue, cb=receive)

    async def listen(self, subject: str, handler: Callable[[Msg], None]) -> Subscription:
        """Call a quick function for each message, in order."""

        async def receive(msg: Msg) -> None:
            try:
                handler(msg)
            except Exception:
                log.exception("listener of %s failed", subject)

        return await self.client.subscribe(subject, cb=receive)

    async def refuse(self, reply: str, info: ErrorInfo) -> None:
        """Answer a request with an error."""
        if reply:
            await self.publish(reply, info, headers={ERROR_HEADER: info.code.value})

    async def store(
        self, subject: str, message: BaseModel | bytes, msg_id: str, deadline_s: float
    ) -> None:
        """Publish to a stream until it is acknowledged or `deadline_s` has passed.

        The same Msg-Id makes repeats harmless. Raises the last error (`nats.js.errors.APIError` for
        a refusal by the stream, timeouts and connection errors otherwise).
        """
        payload = _encode(message)
        async for attempt in AsyncRetrying(
            retry=retry_if_exception(_may_pass),
            stop=stop_after_delay(deadline_s),
            wait=wait_exponential_jitter(multiplier=0.02, max=0.5, jitter=0.05),
            reraise=True,
        ):
            with attempt:
                await self.js.publish(
                    subject, payload, timeout=1.0, headers={"Nats-Msg-Id": msg_id}
                )

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run in the background; the bus keeps the task alive and logs its failure."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("background task failed", exc_info=task.exception())

    async def flush(self) -> None:
        """Wait until the server has seen every subscription and message so far (2 s at most)."""
        await self.client.flush(timeout=2)

    async def settle(self, timeout_s: float) -> None:
        """Wait for running handlers."""
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=timeout_s)

    async def close(self) -> None:
        """Flush what was published and disconnect."""
        try:
            await self.flush()
        except (OSError, nats.errors.Error, TimeoutError):
            log.warning("the bus was gone before the last messages were flushed")
        await self.client.close()


def _encode(message: BaseModel | bytes) -> bytes:
    return message if isinstance(message, bytes) else message.model_dump_json().encode()


def _unreadable(subject: str, error: ValidationError) -> ErrorInfo:
    first = error.errors(include_url=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    return ErrorInfo(
        code=ErrorCode.INVALID_REQUEST,
        message=f"unreadable message on {subject}: {where or 'body'}: {first['msg']}",
    )


def _may_pass(error: BaseException) -> bool:
    if isinstance(error, nats.js.errors.APIError):
        return error.err_code == _STORE_BUSY or error.code == 503
    return isinstance(error, (OSError, TimeoutError, nats.errors.Error))


async def _report(error: Exception) -> None:
    log.warning("bus: %s: %s", type(error).__name__, error)
