"""Handing requests to executors: one question each, and what the answer means."""

import json
import logging
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from contracts import subjects
from contracts.errors import ErrorCode, HeadraceError
from contracts.frames import LEASE_REPLY_DECODER, LeaseReply
from stages.queueing.clocks import Clocks
from stages.queueing.ledger import Entry
from stages.queueing.pool import Grant, PoolQueue
from stages.runtime.bus import Bus

ANSWER_S: Final = 1.0
_NOT_RUN: Final = (ErrorCode.NO_CAPACITY, ErrorCode.SHUTTING_DOWN)  # nobody listens, or it leaves

Fail = Callable[[PoolQueue, Entry, str], Awaitable[None]]
Stop = Callable[[PoolQueue, str], Awaitable[None]]
Lost = Callable[[PoolQueue, Entry, int, str | None], None]

log = logging.getLogger("headrace.queueing")


class Leasing:
    """Gives out all that credit allows. `fail` ends a request as an error, `stop` stops it once more,
    `lost` closes an attempt that nobody answered for."""

    def __init__(self, bus: Bus, clocks: Clocks, fail: Fail, stop: Stop, lost: Lost) -> None:
        self._bus = bus
        self._clocks = clocks
        self._fail = fail
        self._stop = stop
        self._lost = lost
        self.paused = False

    def pump(self, pool: PoolQueue) -> None:
        """Start every lease that is possible now."""
        while not self.paused and not pool.adopting and pool.holds():
            grant = pool.grant(self._clocks.now_s(), self._clocks.now_ms())
            if grant is None:
                return
            self._bus.spawn(self._ask(pool, grant))

    async def _ask(self, pool: PoolQueue, grant: Grant) -> None:
        if not pool.holds():
            return
        grant.entry.leased_ms = self._clocks.now_ms()
        try:
            message = lease_bytes(grant, pool.epoch)
            answer = await self._bus.request_bytes(
                subjects.lease(grant.executor), message, ANSWER_S
            )
            reply = LEASE_REPLY_DECODER.decode(answer)
        except (HeadraceError, msgspec.DecodeError) as error:
            await self._no_answer(pool, grant, error)
        except Exception as error:  # the bus has many; its room must not stay taken for ever
            log.exception("lease of %s went wrong", grant.entry.request_id)
            await self._no_answer(pool, grant, error)
        else:
            await self._answered(pool, grant, reply)
        self.pump(pool)

    async def _answered(self, pool: PoolQueue, grant: Grant, reply: LeaseReply) -> None:
        pool.hear(reply.credit, self._clocks.now_s())
        if reply.accepted:
            if not pool.taken(grant, self._clocks.now_s(), reply.credit.seq):
                await self._stop(
                    pool, grant.entry.request_id
                )  # it ended while the lease was on its way
            return
        log.info("%s declined %s: %s", grant.executor, grant.entry.request_id, reply.reason)
        pool.declined(grant)
        if reply.fatal:
            await self._fail(pool, grant.entry, reply.reason)

    async def _no_answer(self, pool: PoolQueue, grant: Grant, error: Exception) -> None:
        log.warning("lease of %s to %s: %s", grant.entry.request_id, grant.executor, error)
        if isinstance(error, HeadraceError) and error.info.code in _NOT_RUN:
            pool.declined(grant)
            return
        again = pool.unanswered(grant)
        self._lost(pool, grant.entry, grant.attempt, grant.executor)
        if not again:
            await self._fail(pool, grant.entry, f"no executor of pool {pool.name!r} answered")


def lease_bytes(grant: Grant, epoch: int) -> bytes:
    """A `Lease` as JSON around the request as it was stored: long prompts are not encoded again."""
    entry = grant.entry
    tail = {"attempt": grant.attempt, "resume_ids": entry.resume_ids, "epoch": epoch}
    return b'{"work":' + entry.raw + b"," + json.dumps(tail).encode()[1:]
