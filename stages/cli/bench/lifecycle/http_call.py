"""A streamed call over HTTP that goes on where it was when its connection breaks."""

import asyncio
import json
import time
from typing import Any, Final

import httpx2

from stages.cli.bench.lifecycle.call import Call

RETRY_S: Final = 0.2
DONE: Final = "[DONE]"


class HttpCaller:
    """`/v1/completions` with server-sent events; `Last-Event-ID` names the place to go on from."""

    def __init__(
        self, url: str, key: str, transport: httpx2.AsyncBaseTransport | None = None
    ) -> None:
        self._path = f"{url}/completions"
        self._client = httpx2.AsyncClient(
            headers={"authorization": f"Bearer {key}"},
            timeout=httpx2.Timeout(10.0, read=60.0),
            transport=transport,
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=0),
        )

    async def close(self) -> None:
        """Disconnect."""
        await self._client.aclose()

    async def run(self, call: Call, body: dict[str, Any], limit_s: float) -> None:
        """To its end, or until the limit; the outcome is in `call`."""
        until = time.monotonic() + limit_s
        options = {"stream": True, "stream_options": {"include_usage": True}}
        try:
            async with asyncio.timeout_at(asyncio.get_running_loop().time() + limit_s):
                await self._read(call, "POST", self._path, json=body | options)
                while call.ended > time.monotonic() and time.monotonic() < until:
                    await self._resume(call)
        except TimeoutError:
            call.fail(f"no terminal in {limit_s:.0f} s")

    async def _resume(self, call: Call) -> None:
        await asyncio.sleep(RETRY_S)
        call.resumed += 1
        place = {"last-event-id": f"{call.request_id}:{call.offset}"} if call.offset else {}
        path = f"{self._path}/{call.request_id}?stream=true&include_usage=true"
        await self._read(call, "GET", path, headers=place)

    async def _read(self, call: Call, method: str, path: str, **more: Any) -> None:
        """One connection; a broken one leaves `call` open if it was accepted."""
        try:
            async with self._client.stream(method, path, **more) as response:
                if response.status_code != 200:
                    await self._refused(call, response)
                    return
                call.accept(response.headers["x-request-id"])
                await _events(call, response)
        except httpx2.TransportError as error:
            if not call.was_accepted:
                call.fail(f"not connected: {error!r}")

    @staticmethod
    async def _refused(call: Call, response: httpx2.Response) -> None:
        text = (await response.aread()).decode(errors="replace")
        if not call.was_accepted or response.status_code not in (429, 502, 503):
            call.fail(f"HTTP {response.status_code}: {text[:300]}")


async def _events(call: Call, response: httpx2.Response) -> None:
    place, reason = call.offset, ""
    async for line in response.aiter_lines():
        name, _, value = line.partition(": ")
        if name == "id":
            place = int(value.rpartition(":")[2])
        if name != "data":
            continue
        if value == DONE:
            return
        event = json.loads(value)
        if "error" in event:
            call.fail(f"error event: {event['error'].get('code')}: {event['error'].get('message')}")
            return
        for choice in event["choices"]:
            if choice["text"]:
                call.add(choice["text"], min(call.offset, place - 1), place)
            reason = choice["finish_reason"] or reason
        if event.get("usage"):
            used = event["usage"]
            call.end(reason, used["prompt_tokens"], used["completion_tokens"])
