"""The records in HR_OWNER: renewed 4 times a second by the owner, watched by the others."""

import asyncio
import contextlib
import logging
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Final, Protocol

import nats.errors
import nats.js.errors
from nats.js.api import StorageType
from nats.js.kv import KeyValue
from pydantic import ValidationError

from contracts import subjects
from contracts.internal import OwnerRecord
from stages.queueing.ownership import Standing, Timing
from stages.runtime.bus import Bus
from stages.runtime.loops import forever

CALL_S: Final = 0.3
FAREWELL_S: Final = 0.5
_TRANSIENT: Final = (OSError, TimeoutError, nats.errors.Error, ValidationError)

log = logging.getLogger("headrace.queueing")


class Owned(Protocol):
    """What owning a pool means; both are called from the loop that renews and must be quick."""

    def taken(self, pool: str, epoch: int, ended: Mapping[str, int]) -> None:
        """This replica is the owner from now on."""

    def dropped(self, pool: str) -> None:
        """It is not any more: nothing may be done in its name."""

    def ended(self, pool: str) -> Mapping[str, int] | None:
        """The figures that the next owner goes on with; None = as they are."""


class Owners:
    """This replica's standing with every pool of `wanted`."""

    def __init__(
        self,
        bus: Bus,
        me: str,
        clock: Callable[[], float],
        timing: Timing,
        owned: Owned,
    ) -> None:
        self._bus = bus
        self._me = me
        self._clock = clock
        self._timing = timing
        self._owned = owned
        self._standings: dict[str, Standing] = {}
        self._busy: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._loop: asyncio.Task[None] | None = None
        self.frozen = False  # tests stop the renewals, as a process that stands still does

    async def start(self) -> None:
        """Make the bucket where it is missing, look once, then for ever. Raises bus errors."""
        await ensure_bucket(self._bus)
        await self.round()
        self._loop = asyncio.get_running_loop().create_task(
            forever("ownership of pools", self.round, self._timing.renew_s)
        )

    def want(self, pools: set[str]) -> None:
        """The pools that this replica would own."""
        for name in pools - set(self._standings):
            self._standings[name] = Standing(name, self._me, self._timing)

    def wanted(self) -> set[str]:
        """All of them."""
        return set(self._standings)

    def standing(self, pool: str) -> Standing | None:
        """Of one pool."""
        return self._standings.get(pool)

    def holds(self, pool: str, epoch: int) -> bool:
        """Whether this replica may act as that owner at this moment."""
        standing = self._standings.get(pool)
        return standing is not None and standing.holds(epoch, self._clock())

    async def round(self) -> None:
        """Renew what we own, look at the rest, take over what is free."""
        if self.frozen:
            return
        await asyncio.gather(*(self._tend(each) for each in list(self._standings.values())))

    async def release(self, pool: str) -> None:
        """Give one pool up in order: a standby takes it at its next look."""
        async with self._busy[pool]:
            await self._release(pool)

    async def retire(self, pool: str) -> None:
        """Give one pool up and want it no more."""
        async with self._busy[pool]:
            await self._release(pool)
            self._standings.pop(pool, None)

    def forget(self, pool: str) -> None:
        """Want a pool no more that nobody owns; not while we may just be taking it."""
        if not self._busy[pool].locked():
            self._standings.pop(pool, None)

    async def _release(self, pool: str) -> None:
        standing = self._standings.get(pool)
        if standing is None or not standing.epoch:
            return
        record = standing.farewell()
        ended = self._owned.ended(pool)
        self._owned.dropped(pool)
        if record is None:
            return
        if ended is not None:
            record = record.model_copy(update={"ended": dict(ended)})
        try:
            await self._write(standing, record, FAREWELL_S)
        except _TRANSIENT as error:  # a standby waits until the record is old
            log.info("pool %s is given up without a word: %r", pool, error)

    async def stop(self) -> None:
        """No more rounds; everything is given up."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FAREWELL_S):
                for lock in list(self._busy.values()):  # a renewal under way is not broken off
                    async with lock:
                        pass
        await self.kill()
        names = list(self._standings)
        await asyncio.gather(*(self.release(name) for name in names))

    async def kill(self) -> None:
        """No more rounds, without a farewell."""
        if self._loop is not None:
            self._loop.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._loop
            self._loop = None

    async def _tend(self, standing: Standing) -> None:
        async with self._busy[standing.pool]:
            if self._standings.get(standing.pool) is standing:  # else given up meanwhile
                await self._renew_or_take(standing)

    async def _renew_or_take(self, standing: Standing) -> None:
        if standing.epoch and not standing.holds(standing.epoch, self._clock()):
            log.warning("pool %s: ownership was not renewed in time", standing.pool)
            self._drop(standing)
        if not self._bus.client.is_connected:
            standing.pardon(self._clock())
            return
        try:
            if not standing.epoch:
                await self._look(standing)
            await self._act(standing)
        except nats.js.errors.APIError:  # somebody else wrote, or an answer to our write was lost
            await self._again(standing)
        except _TRANSIENT as error:
            log.info("ownership of pool %s: %r", standing.pool, error)

    async def _again(self, standing: Standing) -> None:
        held = standing.epoch
        try:
            await self._look(standing)
            if held and not standing.epoch:
                log.warning("pool %s: taken over by %s", standing.pool, standing.owner)
                self._owned.dropped(standing.pool)
            await self._act(standing)
        except _TRANSIENT as error:
            log.info("ownership of pool %s: %r", standing.pool, error)

    async def _look(self, standing: Standing) -> None:
        try:
            async with asyncio.timeout(CALL_S):
                found = await self._bus.js.get_msg(
                    f"KV_{subjects.OWNER_BUCKET}", subject=_key(standing.pool), direct=True
                )
        except nats.js.errors.NotFoundError:
            standing.saw(None, 0, self._clock())
            return
        record = OwnerRecord.model_validate_json(found.data or b"")
        standing.saw(record, found.seq or 0, self._clock())

    async def _act(self, standing: Standing) -> None:
        record = standing.wants(self._clock(), self._bus.connected_for_s())
        if record is None:
            return
        ended = self._owned.ended(standing.pool) if standing.epoch else None
        if ended is not None:
            record = record.model_copy(update={"ended": dict(ended)})
        if await self._write(standing, record, CALL_S):
            log.info("pool %s is owned by this replica in epoch %d", standing.pool, record.epoch)
            self._owned.taken(standing.pool, record.epoch, record.ended)

    async def _write(self, standing: Standing, record: OwnerRecord, limit_s: float) -> bool:
        sent_s = self._clock()
        ack = await self._bus.js.publish(
            _key(standing.pool),
            record.model_dump_json().encode(),
            timeout=limit_s,
            headers={"Nats-Expected-Last-Subject-Sequence": str(standing.revision)},
        )
        return standing.wrote(record, ack.seq, sent_s)

    def _drop(self, standing: Standing) -> None:
        standing.drop()
        self._owned.dropped(standing.pool)


async def ensure_bucket(bus: Bus) -> KeyValue:
    """The bucket, made where it is missing. Raises bus errors."""
    try:
        return await bus.js.key_value(subjects.OWNER_BUCKET)
    except nats.js.errors.BucketNotFoundError:
        return await bus.js.create_key_value(
            bucket=subjects.OWNER_BUCKET, history=1, storage=StorageType.FILE, direct=True
        )


def _key(pool: str) -> str:
    return f"$KV.{subjects.OWNER_BUCKET}.{pool}"
