"""A client of the HTTP door that reads events itself and notes when they came."""

import json
import time
from dataclasses import dataclass
from typing import Any, Final

import httpx2

from stages.cli.rig import KEY, Rig

WAIT_S: Final = 300.0
_DATA: Final = "data: "


@dataclass
class Streamed:
    """One streamed call, as its client saw it."""

    sent: float
    first: float | None = None  # when the first text came (monotonic seconds)
    finish_reason: str | None = None
    done: bool = False
    error: str | None = None

    @property
    def whole(self) -> bool:
        """It had text and one orderly end."""
        return self.first is not None and self.finish_reason is not None and self.done

    @property
    def ttft_ms(self) -> float:
        """From sending to the first text. Raises RuntimeError if there was none."""
        if self.first is None:
            raise RuntimeError(f"a call without text: {self.error}")
        return 1e3 * (self.first - self.sent)

    def take(self, line: str) -> None:
        """One line of the stream."""
        if line == _DATA + "[DONE]":
            self.done = True
        elif line.startswith(_DATA):
            self._note(json.loads(line.removeprefix(_DATA)))

    def _note(self, data: dict[str, Any]) -> None:
        if "error" in data:
            self.error = data["error"]["message"]
            return
        (choice,) = data["choices"]
        if choice["text"] and self.first is None:
            self.first = time.perf_counter()
        self.finish_reason = choice["finish_reason"] or self.finish_reason


def connect(rig: Rig) -> httpx2.AsyncClient:
    """A client that opens as many connections as it needs."""
    return httpx2.AsyncClient(
        base_url=rig.http_url,
        headers={"authorization": f"Bearer {KEY}"},
        timeout=WAIT_S,
        limits=httpx2.Limits(max_connections=None),
    )


async def stream(client: httpx2.AsyncClient, text: str, tokens: int) -> Streamed:
    """Continue a text; failures are in the answer."""
    body = {
        "prompt": text,
        "max_tokens": tokens,
        "temperature": 0.0,
        "ignore_eos": True,
        "stream": True,
        "timeout_ms": 1000 * int(WAIT_S),
    }
    streamed = Streamed(time.perf_counter())
    try:
        async with client.stream("POST", "/completions", json=body) as response:
            if response.status_code != 200:
                streamed.error = (await response.aread()).decode()
                return streamed
            async for line in response.aiter_lines():
                streamed.take(line)
    except httpx2.HTTPError as error:
        streamed.error = repr(error)
    return streamed
