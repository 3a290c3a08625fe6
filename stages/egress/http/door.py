"""The HTTP server inside egress's own event loop."""

import asyncio
import contextlib
import logging
import socket
from collections.abc import Iterator
from typing import Final

import uvicorn

from contracts.errors import ErrorCode, ErrorInfo
from stages.egress.http.app import HttpApp
from stages.egress.http.calls import Calls
from stages.egress.http.errors import HttpError, problem
from stages.egress.http.protocol import IDLE_S, Connection
from stages.egress.resuming import Resuming
from stages.egress.sessions import SHUTTING_DOWN, Sessions
from stages.runtime.bus import Bus

# Calls cost memory and time before anyone knows their key: more at once are refused.
CALLS_AT_ONCE: Final = 4096
BACKLOG: Final = 2048
# A client whose machine vanished is noticed (s until the first probe, between probes, probes).
KEEP_ALIVE: Final = (("TCP_KEEPIDLE", 20), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3))
START_S: Final = 10.0

log = logging.getLogger("headrace.egress")


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are the stage's affair."""
        yield


class HttpDoor:
    """Serves the OpenAI-compatible API on `address` (HOST:PORT)."""

    def __init__(
        self,
        bus: Bus,
        sessions: Sessions,
        resuming: Resuming,
        egress: str,
        address: str,
        buffer_chunks: int,
    ) -> None:
        self.address = address
        self._calls = Calls(bus, sessions, resuming, egress, buffer_chunks)
        self._app = HttpApp(self._calls, self._busy)
        self._server = _Server(
            uvicorn.Config(
                self._app.asgi,
                http=Connection,
                ws="none",
                lifespan="off",
                interface="asgi3",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                backlog=BACKLOG,
                timeout_keep_alive=int(IDLE_S),
            )
        )
        self._serving: asyncio.Future[None] | None = None

    async def start(self) -> None:
        """Listen; raises `RuntimeError` when the port is taken by another program."""
        logging.getLogger("uvicorn").setLevel(logging.WARNING)
        listener = listen(self.address)
        serving = asyncio.ensure_future(self._server.serve(sockets=[listener]))
        self._serving = serving
        async with asyncio.timeout(START_S):
            while not self._server.started:
                if serving.done():
                    serving.result()
                    raise RuntimeError(f"the HTTP server on {self.address} ended at once")
                await asyncio.sleep(0.005)

    @property
    def buffer_chunks(self) -> int:
        """Unsent chunks before a slow client is given up."""
        return self._calls.buffer_chunks

    @buffer_chunks.setter
    def buffer_chunks(self, limit: int) -> None:
        self._calls.buffer_chunks = limit

    def refuse_new(self) -> None:
        """Close the port and idle connections, so that new calls go to other replicas; calls that
        come all the same are refused as 503."""
        self._app.draining = True
        self._server.should_exit = True

    async def stop(self, grace_s: float) -> None:
        """Wait until running calls have ended, at most `grace_s`; the rest is cut off."""
        if self._serving is None:
            return
        self._server.should_exit = True
        await asyncio.wait({self._serving}, timeout=grace_s)
        if not self._serving.done():
            self._server.force_exit = True
            for task in list(self._server.server_state.tasks):
                task.cancel()
        await self._serving

    def _busy(self) -> HttpError | None:
        if self._app.draining:
            return problem(SHUTTING_DOWN)
        if len(self._server.server_state.tasks) > CALLS_AT_ONCE:
            message = f"this process has {CALLS_AT_ONCE} calls already; call again in 1 s"
            info = ErrorInfo(code=ErrorCode.SATURATED, message=message, retry_after_s=1.0)
            return problem(info)
        return None


def listen(address: str) -> socket.socket:
    """A listening socket whose port replicas share; raises `RuntimeError` when another program has it."""
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in KEEP_ALIVE:
        if hasattr(socket, name):  # accepted connections inherit it
            listener.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    try:
        listener.bind((host, int(port)))
    except OSError as error:
        listener.close()
        message = f"cannot listen on {address} (stages.egress.http): {error.strerror}"
        raise RuntimeError(message) from None
    listener.setblocking(False)
    return listener
