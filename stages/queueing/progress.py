"""Lost requests: their egress is asked what was delivered, and they are leased again or ended."""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Iterable
from typing import Final

import nats.errors
from pydantic import ValidationError

from contracts import subjects
from contracts.client import FinishReason
from contracts.errors import HeadraceError
from contracts.sessions import Progress, ProgressQuery, ProgressReply
from stages.queueing.board import Board
from stages.queueing.clocks import Clocks
from stages.queueing.closing import Closing
from stages.queueing.leasing import Leasing
from stages.queueing.ledger import Entry, State
from stages.queueing.pool import PoolQueue
from stages.queueing.recovery import UNKNOWN_TIMES, Verdict, judge, questions
from stages.runtime.bus import Bus

PROGRESS_S: Final = 1.0
RECEIPT_GRACE_S: Final = 0.05

log = logging.getLogger("headrace.queueing")


class Asking:
    """Asks egresses about requests in state LOST."""

    def __init__(
        self, bus: Bus, clocks: Clocks, board: Board, closing: Closing, leasing: Leasing
    ) -> None:
        self._bus = bus
        self._clocks = clocks
        self._board = board
        self._closing = closing
        self._leasing = leasing
        self._busy: set[tuple[str, str]] = set()  # (pool, egress) with a question under way

    def ask(self, pool: PoolQueue) -> None:
        """One question for each living egress that has lost requests of this pool."""
        now_s = self._clocks.now_s()
        by_egress: dict[str, list[Entry]] = defaultdict(list)
        for entry in pool.ledger:
            if entry.state is State.LOST:
                by_egress[entry.work.egress].append(entry)
        for egress, entries in by_egress.items():
            key = (pool.name, egress)
            if self._board.egresses.lives(egress, now_s) and key not in self._busy:
                self._busy.add(key)
                self._bus.spawn(self._ask(pool, egress, entries))

    async def progress(self, egress: str, entries: list[Entry]) -> dict[str, Progress]:
        """What one egress knows of them. Raises HeadraceError, ValidationError, bus errors."""
        query = ProgressQuery(request_ids=[entry.request_id for entry in entries])
        reply = await self._bus.request(subjects.session(egress), query, ProgressReply, PROGRESS_S)
        return {each.request_id: each for each in reply.sessions}

    async def search(self, entries: list[Entry], besides: str) -> None:
        """A session may have moved under an owner before us: ask every other living egress, and note
        where it is. One that does not answer is asked in the next round."""
        for egress in self._board.egresses.living(self._clocks.now_s()):
            if egress == besides or not entries:
                continue
            found: dict[str, Progress] = {}
            for group in questions(entries):
                try:
                    found |= await self.progress(egress, group)
                except (HeadraceError, ValidationError, OSError, nats.errors.Error) as error:
                    log.warning("egress %s does not tell its progress: %r", egress, error)
                    break
            for entry in entries:
                if entry.request_id in found and entry.work.egress == besides:
                    entry.move_to(egress)
            entries = [entry for entry in entries if entry.work.egress == besides]

    async def _ask(self, pool: PoolQueue, egress: str, entries: list[Entry]) -> None:
        try:
            for group in questions(entries):
                await self._ask_about(pool, egress, group)
        except (HeadraceError, ValidationError, OSError, nats.errors.Error) as error:
            log.warning("egress %s does not tell its progress: %r", egress, error)
            # asked again at the next tick, until it is silent
        finally:
            self._busy.discard((pool.name, egress))
        self._leasing.pump(pool)

    async def _ask_about(self, pool: PoolQueue, egress: str, entries: list[Entry]) -> None:
        known = await self.progress(egress, entries)
        await asyncio.sleep(RECEIPT_GRACE_S)  # receipts sent before the reply are read first
        strange = [entry for entry in entries if entry.request_id not in known]
        if strange:
            await self.search(strange, egress)
        for entry in _still_lost(pool, entries):
            if entry.work.egress == egress:  # otherwise its new one is asked in the next round
                await self._carry_out(pool, entry, known.get(entry.request_id))

    async def _carry_out(self, pool: PoolQueue, entry: Entry, progress: Progress | None) -> None:
        verdict = judge(entry, progress)
        if verdict is Verdict.LEASE_AGAIN:
            entry.unknown = 0
            pool.line_up_again(entry)
        elif verdict is Verdict.GIVE_UP:
            why = f"{entry.tries} attempts on executors of pool {pool.name!r} were lost"
            await self._closing.fail(pool, entry, why)
        elif verdict is Verdict.ENDED:
            assert progress is not None
            assert progress.finish_reason is not None
            self._closing.end(pool, entry.request_id, progress.finish_reason)
        elif verdict is Verdict.UNKNOWN:
            entry.unknown += 1  # between two egresses a session is known to none for a moment
            if entry.unknown >= UNKNOWN_TIMES:
                await self._closing.orphan(pool, entry, FinishReason.ERROR)
        # ENDING: it stays lost, and is asked about again until the receipt is stored


def _still_lost(pool: PoolQueue, entries: Iterable[Entry]) -> list[Entry]:
    return [
        entry
        for entry in entries
        if entry.state is State.LOST and pool.ledger.get(entry.request_id) is entry
    ]
