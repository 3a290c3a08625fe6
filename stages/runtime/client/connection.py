"""A client's connection to nats-server that outlives a restart of it."""

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import Any, Final

import nats.errors
from nats.aio.client import Client
from tenacity import AsyncRetrying, retry_if_exception, stop_after_delay, wait_random

from contracts import subjects
from stages.runtime.client.answers import AccessDenied, CannotConnect

# After a restart of the service whoever looks at keys may come back later than the server.
DENIED_S: Final = 5.0
PAUSE_S: Final = (0.1, 0.3)


class Connection:
    """Reconnects by itself; `broken` is called whenever messages may have been missed."""

    def __init__(
        self, url: str, tenant: str, key: str | None, limit_s: float, broken: Callable[[], None]
    ) -> None:
        self._url = url
        self._tenant = tenant
        self._key = key
        self._limit_s = limit_s
        self._broken = broken
        self._closing = False
        self._denied_s: float | None = None  # since when the server does not let us in again
        self._mending = asyncio.Lock()
        self._ending: asyncio.Task[None] | None = None
        self._opened = False
        self.client = Client()

    async def open(self) -> None:
        """Connect in `limit_s` or raise `CannotConnect`, `AccessDenied`."""
        client = Client()
        own = "@" not in self._url and self._key is not None
        access: dict[str, Any] = {"user": self._tenant, "password": self._key} if own else {}
        try:
            await asyncio.wait_for(
                client.connect(
                    self._url,
                    **access,
                    error_cb=self._on_error,
                    inbox_prefix=subjects.inbox(self._tenant),
                    closed_cb=self._told,
                    disconnected_cb=self._told,
                    reconnected_cb=self._welcome,
                    ping_interval=5,
                    allow_reconnect=False,
                    max_reconnect_attempts=1,  # or a refused connection is tried for minutes
                    reconnect_time_wait=0,
                ),
                self._limit_s,
            )
        except (OSError, TimeoutError, nats.errors.Error) as error:
            await client.close()  # a connection that was refused stays open otherwise
            raise self._why_not(error) from None
        client.options.update(
            allow_reconnect=True, max_reconnect_attempts=-1, reconnect_time_wait=0.2
        )
        self.client = client
        self._opened = True
        self._denied_s = None

    def _why_not(self, error: Exception) -> Exception:
        place = self._url.rpartition("@")[2]
        if "authorization" in str(error).lower():
            return AccessDenied(
                f"the NATS server at {place} does not take this API key for tenant "
                f"{self._tenant!r}: it is unknown, revoked, expired or another tenant's; see "
                "`headrace keys list`"
            )
        return CannotConnect(
            f"no NATS server takes us at {place}: {str(error) or 'no answer in time'}"
        )

    async def ready(self, until: float) -> Client:
        """The connected client, at the monotonic `until` at last. Raises `CannotConnect`,
        `AccessDenied` when the key is refused for a while."""
        async with self._mending:
            if self.client.is_closed and not self._closing:
                await self._again(until)
        while not self.client.is_connected:
            if self._closing or time.monotonic() > until:
                raise CannotConnect("the connection to the NATS server was lost")
            if self.client.is_closed:
                return await self.ready(until)
            await asyncio.sleep(0.05)
        return self.client

    async def _again(self, until: float) -> None:
        """A server that refuses us while it starts closes the connection for good: a new one."""
        denied_until = (self._denied_s or time.monotonic()) + DENIED_S

        def may_pass(error: BaseException) -> bool:
            denied = isinstance(error, AccessDenied) and time.monotonic() < denied_until
            return denied or isinstance(error, CannotConnect)

        async for attempt in AsyncRetrying(
            retry=retry_if_exception(may_pass),
            stop=stop_after_delay(until - time.monotonic()),
            wait=wait_random(*PAUSE_S),
            reraise=True,
        ):
            with attempt:
                await self.open()

    async def close(self) -> None:
        """For good."""
        self._closing = True
        with contextlib.suppress(OSError, nats.errors.Error):
            await self.client.close()

    async def _told(self) -> None:
        self._broken()

    async def _welcome(self) -> None:
        self._denied_s = None
        self._broken()

    async def _on_error(self, error: Exception) -> None:
        """What matters reaches the calls; a callback that raises would kill the connection.

        nats-py would go on asking where a key has been revoked, and leave a socket behind each time:
        the next call opens a new connection, or hears that it is denied.
        """
        lost = self._opened and not self.client.is_connected and not self.client.is_closed
        if lost and "authorization" in str(error).lower():
            self._denied_s = self._denied_s or time.monotonic()
            self._ending = asyncio.get_running_loop().create_task(self.client.close())
