"""NATS clients: let in by the auth callout, shown out when their key is no more."""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Final

import nats.errors

from stages.ingress.access import Access
from stages.ingress.auth_callout import AuthCallout
from stages.ingress.user_jwt import Issuer
from stages.runtime.clock import now_ms
from stages.runtime.loops import forever
from stages.runtime.stage import Context

# Egress ends the streams of a key that is no more at the same time: their clients hear it first.
FIRST_S: Final = 0.25
AGAIN_S: Final = 0.3
SELDOM_S: Final = 10.0

log = logging.getLogger("headrace.ingress")


class Clients:
    """The callout, and a sweep when the keys have changed or one has ended, and now and then in case
    that failed. (A client's own paper ends with its key, but as that ended when it came in.)

    A second sweep follows the first: another ingress, or we ourselves a moment ago, may have let a
    client in by the keys of before, and the server may not have listed it yet. Without a callout
    (a server that is not ours) there is nothing to do.
    """

    def __init__(self, callout: AuthCallout | None) -> None:
        self._callout = callout
        self._task: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()

    @classmethod
    def of(cls, context: Context, access: Callable[[], Access]) -> "Clients":
        """As the launch file says."""
        seed = context.launch.bus.issuer
        if seed is None:
            return cls(None)
        return cls(AuthCallout(context.bus, Issuer(seed), access, now_ms))

    @property
    def counts(self) -> dict[str, float]:
        """Clients let in, refused, shown out."""
        return dict(self._callout.counts) if self._callout is not None else {}

    async def start(self) -> None:
        """Answer and sweep from now on."""
        if self._callout is None:
            return
        await self._callout.start()
        sweeping = forever("ending connections of revoked keys", self._round, 0.0)
        self._task = asyncio.get_running_loop().create_task(sweeping)

    def changed(self) -> None:
        """Keys may be gone."""
        self._changed.set()

    def stop(self) -> None:
        """No more sweeps."""
        if self._task is not None:
            self._task.cancel()

    async def _round(self) -> None:
        assert self._callout is not None
        ends_s = self._callout.next_end_s()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(min(SELDOM_S, ends_s)):
                await self._changed.wait()
        again = self._changed.is_set() or ends_s < SELDOM_S
        self._changed.clear()
        try:
            if again:
                await asyncio.sleep(FIRST_S)
            await self._callout.sweep()
            if again:
                await asyncio.sleep(AGAIN_S)
                await self._callout.sweep()
        except (OSError, TimeoutError, nats.errors.Error, ValueError, LookupError) as error:
            log.warning("connections cannot be looked through now: %r", error)
            await asyncio.sleep(AGAIN_S)
            if again:
                self._changed.set()
