"""The answer to one call, written while its sessions speak: as events, or as one JSON object."""

import asyncio
from collections.abc import Callable
from typing import Final

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from contracts.client import Complete
from contracts.errors import ErrorInfo
from stages.egress.http.errors import JSON, HttpError, problem
from stages.egress.http.forms import Form, failure
from stages.egress.http.inbox import Inbox
from stages.egress.http.sse import EventWriter
from stages.egress.http.translate import Asked
from stages.egress.output import ChunkOut

EVENTS: Final = "text/event-stream; charset=utf-8"


class Reply(Response):
    """Waits for the sessions of a call and answers. `leave` is called in the end, whatever happens.

    The status is sent with the first event, so what fails before is told by its HTTP status.
    """

    def __init__(
        self,
        asked: Asked,
        inbox: Inbox,
        request_id: str,
        leave: Callable[[], None],
        start: int = 0,
    ) -> None:
        self.background = None
        self.status_code = 200
        self._asked = asked
        self._inbox = inbox
        self._request_id = request_id
        self._leave = leave
        self._start_offset = start

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As ASGI."""
        watch = asyncio.ensure_future(self._watch(receive))
        try:
            await self._run(scope, receive, send)
        finally:
            watch.cancel()
            self._inbox.leave()
            self._leave()

    async def _watch(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._inbox.leave()

    async def _run(self, scope: Scope, receive: Receive, send: Send) -> None:
        inbox = self._inbox
        await inbox.admission(self._asked.n)
        if inbox.left:
            return
        if inbox.refused is not None:
            refused = problem(inbox.refused, self._asked.names)
            await refused.response(self._request_id)(scope, receive, send)
            return
        first = inbox.accepted[0]
        # After an idempotent repeat or a resume it is another request than this call's own.
        self._request_id = first.request_id
        form = Form(self._asked.verb, first.request_id, first.decision.model, self._asked.tier)
        if self._asked.stream:
            await self._stream(form, scope, receive, send)
            return
        outcome = await self._collect(form)
        if isinstance(outcome, HttpError):
            answer = outcome.response(self._request_id, self._told())
        else:
            answer = Response(outcome, 200, self._told(), JSON)
        await answer(scope, receive, send)

    def _told(self) -> dict[str, str]:
        decision = self._inbox.accepted[0].decision
        told = {"x-request-id": self._request_id}
        for name, value in decision.model_dump().items():
            told[f"x-headrace-{name}"] = _header(value)
        return told

    async def _collect(self, form: Form) -> bytes | HttpError:
        """The whole answer, once every choice has ended; b"" for a client that has left.

        Until then nothing is `written`: who leaves early has received, and pays, no token.
        """
        texts = [""] * self._asked.n
        completes: dict[int, Complete] = {}
        seen = 0
        while len(completes) < self._asked.n:
            batch = await self._inbox.next(seen)
            if not batch:
                return b""
            seen += len(batch)
            for choice, said in batch:
                match said:
                    case ChunkOut():
                        texts[choice] += said.text
                    case Complete():
                        failed = failure(said)
                        if failed is not None:
                            return failed
                        completes[choice] = said
                    case ErrorInfo():
                        return problem(said)
        return form.whole(texts, completes)

    async def _stream(self, form: Form, scope: Scope, receive: Receive, send: Send) -> None:
        asked = self._asked
        writer = EventWriter(
            form.chunks(asked.include_usage),
            asked.n,
            request_id=form.request_id if asked.n == 1 else None,
            usage=asked.include_usage,
            start=self._start_offset,
        )
        started = False
        while not writer.over:
            batch = await self._inbox.next()
            if not batch:
                return
            events, count = b"", 0
            for choice, said in batch:
                events += writer.take(choice, said)
                count += 1
                if writer.over:
                    break
            if writer.problem is not None and not started:
                early = writer.problem.response(self._request_id, self._told())
                await early(scope, receive, send)
                return
            if not started:
                await send(self._start())
                started = True
            await send({"type": "http.response.body", "body": events, "more_body": not writer.over})
            self._inbox.written(count)

    def _start(self) -> dict[str, object]:
        headers = {
            "content-type": EVENTS,
            "cache-control": "no-cache",
            "x-accel-buffering": "no",  # proxies pass each event on at once
            **self._told(),
        }
        pairs = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
        return {"type": "http.response.start", "status": 200, "headers": pairs}


def _header(value: str) -> str:
    """Names of the topology as a header can carry them."""
    return "".join(each if " " <= each <= "~" else "?" for each in value)
