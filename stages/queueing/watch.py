"""Twice a second: who fell silent, what is overdue, where everybody stands."""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Final

import nats.errors
from nats.aio.msg import Msg
from pydantic import ValidationError

from contracts import subjects
from contracts.client import FinishReason
from contracts.errors import HeadraceError
from contracts.internal import Beat, Progress, ProgressQuery, ProgressReply, QueuePosition
from stages.queueing.clocks import Clocks
from stages.queueing.closing import Closing
from stages.queueing.leasing import Leasing
from stages.queueing.ledger import Entry, State
from stages.queueing.pool import PoolQueue
from stages.queueing.recovery import Verdict, judge, questions
from stages.queueing.silence import Egresses, overdue, strays
from stages.runtime.bus import Bus

TICK_S: Final = 0.5
STALL_S: Final = 1.5
POSITIONS_S: Final = 5.0
PROGRESS_S: Final = 1.0
RECEIPT_GRACE_S: Final = 0.05
POSITIONS_A_MESSAGE: Final = 1000

log = logging.getLogger("headrace.queueing")


class Watch:
    """Looks after requests whose executor or egress does not."""

    def __init__(
        self,
        bus: Bus,
        clocks: Clocks,
        pools: Mapping[str, PoolQueue],
        closing: Closing,
        leasing: Leasing,
    ) -> None:
        self._bus = bus
        self._clocks = clocks
        self._pools = pools
        self._closing = closing
        self._leasing = leasing
        self.egresses = Egresses(clocks.now_s())
        self._asking: set[str] = set()  # egresses with a progress query under way
        self._positions_s = clocks.now_s()

    def on_beat(self, msg: Msg) -> None:
        """An egress lives."""
        beat = Beat.model_validate_json(msg.data)
        self.egresses.hear(beat.instance, beat.incarnation, self._clocks.now_s())

    async def run(self) -> None:
        """Tick for ever (cancel to end).

        When this process itself stood still, what others said is still unread: nobody is silent.
        """
        loop = asyncio.get_running_loop()
        while True:
            slept_s = loop.time()
            await asyncio.sleep(TICK_S)
            if loop.time() - slept_s > STALL_S:
                log.warning("this process stood still for %.1f s", loop.time() - slept_s)
                self._pardon(self._clocks.now_s())
            try:
                await self.tick()
            except Exception:
                log.exception("the watch stumbled and goes on")

    async def tick(self) -> None:
        """One round over all pools."""
        now_s = self._clocks.now_s()
        if not self._bus.client.is_connected:
            self._pardon(now_s)
            return
        for pool in self._pools.values():
            for name in pool.lose_silent(now_s):
                log.warning("executor %s of pool %s fell silent", name, pool.name)
            for entry in pool.lose_missing(now_s):
                log.warning("%s ended on its executor, its last words were lost", entry.request_id)
            self._end_overdue(pool, now_s)
            if not self._leasing.paused:
                self._ask_about_lost(pool, now_s)
                await self._stop_strays(pool)
            self._leasing.pump(pool)
        if now_s - self._positions_s >= POSITIONS_S:
            self._positions_s = now_s
            self.egresses.forget_gone(now_s)
            await self._tell_positions()

    def _pardon(self, now_s: float) -> None:
        self.egresses.pardon(now_s)
        for pool in self._pools.values():
            pool.pardon(now_s)

    def _end_overdue(self, pool: PoolQueue, now_s: float) -> None:
        now_ms = self._clocks.now_ms()
        for entry in pool.ledger:
            reason = overdue(entry, self.egresses, now_s, now_ms)
            if reason is not None:
                log.warning("no egress ends %s: ending it as %s", entry.request_id, reason)
                self._bus.spawn(self._closing.orphan(pool, entry, reason))

    def _ask_about_lost(self, pool: PoolQueue, now_s: float) -> None:
        by_egress: dict[str, list[Entry]] = defaultdict(list)
        for entry in pool.ledger:
            if entry.state is State.LOST:
                by_egress[entry.work.egress].append(entry)
        for egress, entries in by_egress.items():
            if self.egresses.lives(egress, now_s) and egress not in self._asking:
                self._asking.add(egress)
                self._bus.spawn(self._ask(pool, egress, entries))

    async def _ask(self, pool: PoolQueue, egress: str, entries: list[Entry]) -> None:
        try:
            for group in questions(entries):
                await self._ask_about(pool, egress, group)
        except (HeadraceError, ValidationError, OSError, nats.errors.Error) as error:
            log.warning("egress %s does not tell its progress: %r", egress, error)
            # asked again at the next tick, until it is silent
        finally:
            self._asking.discard(egress)
        self._leasing.pump(pool)

    async def _ask_about(self, pool: PoolQueue, egress: str, entries: list[Entry]) -> None:
        query = ProgressQuery(request_ids=[entry.request_id for entry in entries])
        reply = await self._bus.request(subjects.session(egress), query, ProgressReply, PROGRESS_S)
        await asyncio.sleep(RECEIPT_GRACE_S)  # receipts sent before the reply are read first
        known = {progress.request_id: progress for progress in reply.sessions}
        for entry in entries:
            if entry.state is State.LOST:
                await self._carry_out(pool, entry, known.get(entry.request_id))

    async def _carry_out(self, pool: PoolQueue, entry: Entry, progress: Progress | None) -> None:
        verdict = judge(entry, progress)
        if verdict is Verdict.LEASE_AGAIN and pool.gone:
            why = f"pool {pool.name!r} is not in the topology any more; call again"
            await self._closing.fail(pool, entry, why)
        elif verdict is Verdict.LEASE_AGAIN:
            pool.line_up_again(entry)
        elif verdict is Verdict.GIVE_UP:
            why = f"{entry.tries} attempts on executors of pool {pool.name!r} were lost"
            await self._closing.fail(pool, entry, why)
        elif verdict is Verdict.ENDED:
            assert progress is not None
            assert progress.finish_reason is not None
            self._closing.end(pool, entry.request_id, progress.finish_reason)
        elif verdict is Verdict.UNKNOWN:
            await self._closing.orphan(pool, entry, FinishReason.ERROR)
        # ENDING: it stays lost, and is asked about again until the receipt is stored

    async def _stop_strays(self, pool: PoolQueue) -> None:
        """Executors run nothing in vain."""
        for executor in list(pool.executors.known.values()):
            for request_id, attempt in strays(executor, pool.ledger):
                await self._closing.stop(request_id, attempt)

    async def _tell_positions(self) -> None:
        for pool in self._pools.values():
            waiting: dict[str, dict[str, int]] = defaultdict(dict)
            for position, request_id in enumerate(pool.order):
                entry = pool.ledger.get(request_id)
                if entry is not None:
                    waiting[entry.work.egress][request_id] = position
            for egress, positions in waiting.items():
                await self._send_positions(egress, positions)

    async def _send_positions(self, egress: str, positions: dict[str, int]) -> None:
        for part in _parts(list(positions.items())):
            message = QueuePosition(positions=dict(part))
            await self._bus.publish(subjects.session(egress), message)


def _parts(items: list[tuple[str, int]]) -> Iterable[list[tuple[str, int]]]:
    return (
        items[start : start + POSITIONS_A_MESSAGE]
        for start in range(0, len(items), POSITIONS_A_MESSAGE)
    )
