"""Waiting requests that go to another pool: stored there first, then removed here.

The copy has the next hop number, so whatever breaks off in between, only the highest hop of a request
is kept. What was asked of the other pool is asked again until that has answered: it may have the copy.
"""

import asyncio
import json
import logging
import time
from collections.abc import Callable, Mapping
from typing import Final

import nats.errors
from nats.aio.msg import Msg

from contracts import subjects
from contracts.errors import ErrorCode, HeadraceError
from contracts.internal import AdmitReply, MoveCall, MoveReply, Work
from contracts.topology import PoolSection
from stages.queueing.board import Board
from stages.queueing.clocks import Clocks
from stages.queueing.ledger import Entry, State
from stages.queueing.pool import PoolQueue
from stages.runtime.bus import Bus, UnansweredError, UnservedError

TRY_S: Final = 1.0
PAUSE_S: Final = 0.05
UNSERVED_S: Final = 3.0  # the other pool's owner may be changing
REPLY_S: Final = 8.0  # what takes longer goes on after the answer
AT_ONCE: Final = 32

Sections = Callable[[], Mapping[str, PoolSection]]
Wake = Callable[[PoolQueue], None]

log = logging.getLogger("headrace.queueing")


class Moves:
    """Answers `hr.move.<pool>` for the pools that we own. `wake` looks after lost requests."""

    def __init__(
        self, bus: Bus, clocks: Clocks, board: Board, sections: Sections, wake: Wake
    ) -> None:
        self._bus = bus
        self._clocks = clocks
        self._board = board
        self._sections = sections
        self._wake = wake
        self._leaving: set[str] = set()

    def under_way(self, request_id: str) -> bool:
        """Whether it is on its way out: not in the ledger, but ours."""
        return request_id in self._leaving

    async def move(self, pool: PoolQueue, call: MoveCall, _: Msg) -> MoveReply | None:
        """None = no answer, we own the pool no more. Raises not_found, invalid_request."""
        if not pool.holds():
            return None
        self._check(pool, call.to)
        wanted = list(pool.order) if call.request_ids is None else call.request_ids
        gate = asyncio.Semaphore(AT_ONCE)
        end_s = time.monotonic() + REPLY_S

        async def one(request_id: str) -> str | None:
            async with gate:
                return await self._move(pool, request_id, call, end_s - time.monotonic())

        unique = list(dict.fromkeys(wanted))
        outcomes = dict(zip(unique, await asyncio.gather(*map(one, unique)), strict=True))
        return MoveReply(
            moved=[name for name, why in outcomes.items() if why is None],
            stayed={name: why for name, why in outcomes.items() if why is not None},
        )

    def _check(self, pool: PoolQueue, to: str) -> None:
        sections = self._sections()
        if to not in sections:
            raise HeadraceError(
                ErrorCode.NOT_FOUND,
                f"there is no pool {to[:64]!r}; there are: {', '.join(sorted(sections))}",
                field="to",
            )
        if to == pool.name:
            raise HeadraceError(
                ErrorCode.INVALID_REQUEST, f"they wait in pool {to!r} already", field="to"
            )
        ours = sections.get(pool.name)
        if ours is not None and ours.model != sections[to].model:
            raise HeadraceError(
                ErrorCode.INVALID_REQUEST,
                f"pool {to!r} serves model {sections[to].model!r}, pool {pool.name!r} serves "
                f"{ours.model!r}: name a pool of the same model",
                field="to",
            )

    async def _move(
        self, pool: PoolQueue, request_id: str, call: MoveCall, limit_s: float
    ) -> str | None:
        """None = moved, else why it stayed."""
        entry = pool.ledger.get(request_id)
        if entry is None:
            return "it does not wait here: it has ended, or was moved before"
        if entry.state is not State.QUEUED:
            return "it runs already" if entry.executor is not None else "it does not wait now"
        work, raw = moved_copy(entry, call.to, call.reason)
        pool.leave(entry)
        pool.ledger.transfer_out(request_id)
        self._leaving.add(request_id)
        task = asyncio.ensure_future(self._hand_over(pool, entry, call.to, raw, work.deadline_ms))
        done, _ = await asyncio.wait([task], timeout=max(limit_s, 0.0))
        if done:
            return task.result()
        self._bus.spawn(_finish(task))
        return f"pool {call.to!r} does not answer; it is moved as soon as that does"

    async def _hand_over(
        self, pool: PoolQueue, entry: Entry, to: str, raw: bytes, deadline_ms: float
    ) -> str | None:
        try:
            why = await self._ask(pool, to, raw, deadline_ms)
            if why is None:
                self._board.remove(pool, entry.stream_seq)
            elif pool.holds():
                # Its session may have ended meanwhile: its egress is asked before it waits again.
                entry.state = State.LOST
                pool.ledger.transfer_in(entry)
        finally:
            self._leaving.discard(entry.request_id)
        if why is not None:
            self._wake(pool)
        return why

    async def _ask(self, pool: PoolQueue, to: str, raw: bytes, deadline_ms: float) -> str | None:
        """Have it stored in the other pool; None = it is, else why it surely is not."""
        unserved_s = time.monotonic() + UNSERVED_S
        unclear = False
        while pool.holds():
            try:
                await self._bus.request_bytes(subjects.moved(to), raw, TRY_S)
            except UnservedError:
                if not unclear and time.monotonic() >= unserved_s:
                    return f"nobody serves the queue of pool {to!r} now"
            except UnansweredError:
                unclear = True
            except HeadraceError as error:
                return error.info.message
            except (OSError, nats.errors.Error) as error:
                log.warning("moving to pool %s: %r", to, error)
                unclear = True
            else:
                return None
            if self._clocks.now_ms() > deadline_ms:
                return (
                    "its deadline passed"  # a copy is refused from now on, or ended by its egress
                )
            await asyncio.sleep(PAUSE_S)
        return "another process looks after this queue now; look again"


async def _finish(task: "asyncio.Future[str | None]") -> None:
    await task


def moved_copy(entry: Entry, to: str, reason: str) -> tuple[Work, bytes]:
    """The request as the other pool stores it, without and with its prompt."""
    work = entry.work.model_copy(
        update={
            "pool": to,
            "reason": f"{reason}, from pool {entry.work.pool}",
            "hop": entry.work.hop + 1,
            "attempt": max(entry.attempt, entry.floor, entry.work.attempt),
        }
    )
    prompt_ids = json.loads(entry.raw)["prompt_ids"]
    return work, work.model_copy(update={"prompt_ids": prompt_ids}).model_dump_json().encode()


def terms_of(pool: PoolQueue, entry: Entry) -> AdmitReply:
    """What its new pool answers, and what its egress is told."""
    return AdmitReply(
        work=entry.work, prompt_tokens=entry.prompt_tokens, position=pool.position(entry)
    )
