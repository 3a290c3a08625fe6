"""What leaves an executor: token frames, attempts, credit, intervals; in the order they happened."""

import asyncio
import contextlib
import logging
from dataclasses import dataclass, field
from typing import Final

import nats.errors

from contracts import subjects
from contracts.frames import FRAME_ENCODER, Credit, TokenItem
from contracts.usage import Price
from gpu_worker.driver import Intervals, StepReport
from gpu_worker.events import AttemptFinish, book, refused_item, to_attempt, to_frames, to_item
from gpu_worker.roster import Held, Roster
from gpu_worker.timekeeping import Identity, Timekeeper
from stages.runtime.bus import Bus
from stages.runtime.clock import now_ms
from stages.runtime.sender import DurableSender

REPORTS_S: Final = 0.5  # how long `close` waits for the last reports to be published
STORED_S: Final = 0.5  # how long `close` waits for the last usage events to be stored

log = logging.getLogger("headrace.executor")


@dataclass
class Round:
    """What one step report means for others."""

    items: list[tuple[str, TokenItem]] = field(default_factory=list)  # egress, item
    finished: list[tuple[Held, AttemptFinish]] = field(default_factory=list)


class Outbox:
    """Publishes for one executor. `draining` makes its credit zero and its idle time `drain`.

    What is absolute or can be made again (frames, credit) is dropped with a line in the log when
    the bus does not take it; attempts and intervals wait until they are stored.
    """

    def __init__(self, bus: Bus, roster: Roster, identity: Identity, spawned_ms: float) -> None:
        self._bus = bus
        self._roster = roster
        self._me = identity
        self._price: Price = identity.price
        self._time = Timekeeper(identity, spawned_ms, now_ms())
        self._usage = DurableSender(bus)
        self._reports: asyncio.Queue[StepReport] = asyncio.Queue()
        self._seq = 0
        self.draining = False
        self.empty = asyncio.Event()
        self.counts = {"steps": 0.0, "tokens": 0.0, "attempts": 0.0, "unsent": 0.0}

    @property
    def interval_end_ms(self) -> float:
        """Where the reported time ends, unix ms."""
        return self._time.end_ms

    @property
    def unstored(self) -> int:
        """Usage events that wait to be stored."""
        return self._usage.left

    def put(self, report: StepReport) -> None:
        """Queue a report; called on the event loop."""
        self._reports.put_nowait(report)

    async def next_report(self) -> None:
        """Wait for the next report and publish it."""
        report = await self._reports.get()
        try:
            await self._publish(report)
        finally:
            self._reports.task_done()

    async def close(self, total: Intervals) -> None:
        """Book what is left: attempts whose end nobody reported, and time up to `total`. About 1 s.

        The engine must have stopped, or have been given up.
        """
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._reports.join(), REPORTS_S)
        for held in self._roster.all():
            self._roster.release(held.engine_id)
            self._store_attempt(held, "cancelled", now_ms())
        self.store_interval(total)
        await self._usage.drain(STORED_S)

    async def _publish(self, report: StepReport) -> None:
        done = self._interpret(report)
        for egress, frame in to_frames(self._me.executor, done.items, now_ms()).items():
            await self._say(subjects.tokens(egress), FRAME_ENCODER.encode(frame))
        for held, finish in done.finished:
            self._store_attempt(held, finish, report.ended_ms)
        if done.finished:
            await self.send_credit()
        if len(self._roster) == 0:
            self.empty.set()
            # booked at once, so that whoever asks after the last answer finds its busy time
            self.store_interval(report.intervals)

    async def _say(self, subject: str, payload: bytes) -> None:
        """Publish what may get lost: tokens come again by a later attempt, credit by itself."""
        try:
            await self._bus.publish(subject, payload)
        except (OSError, nats.errors.Error) as error:
            self.counts["unsent"] += 1
            log.warning("not sent on %s: %r", subject, error)

    def _interpret(self, report: StepReport) -> Round:
        self.counts["steps"] += 1
        done = Round()
        for output in report.outputs:
            held = self._roster.get(output.request_id)
            assert held is not None, "the engine ran a request without a lease"
            book(held, output, report.began_ms)
            self.counts["tokens"] += len(output.token_ids)
            if not held.cancelled and (output.token_ids or output.finish):
                done.items.append((held.lease.work.egress, to_item(held, output)))
            if output.finish:
                done.finished.append((held, output.finish))
        for refused, error in report.refused:
            held = self._roster.get(refused)
            assert held is not None, "the engine refused a request without a lease"
            done.items.append((held.lease.work.egress, refused_item(held, str(error))))
            done.finished.append((held, "error"))
        for held, _ in done.finished:
            self._roster.release(held.engine_id)
        return done

    def _store_attempt(self, held: Held, finish: AttemptFinish, ended_ms: float) -> None:
        self.counts["attempts"] += 1
        event = to_attempt(held, finish, self._me, ended_ms)
        self._usage.put(subjects.usage("attempt", self._me.pool), event, event.key)

    def credit(self) -> Credit:
        """What this executor can take now."""
        self._seq += 1
        return Credit(
            executor=self._me.executor,
            pool=self._me.pool,
            seq=self._seq,
            free_slots=0 if self.draining else self._roster.free_slots,
            free_kv_tokens=self._roster.free_kv_tokens,
            running=self._roster.running,
            draining=self.draining,
        )

    async def send_credit(self) -> None:
        """Publish the credit."""
        await self._say(subjects.credit(self._me.pool), FRAME_ENCODER.encode(self.credit()))

    def store_interval(self, total: Intervals) -> None:
        """Book the executor's time since the last call."""
        event = self._time.report(total, draining=self.draining)
        if event is not None:
            self._usage.put(subjects.usage("interval", self._me.pool), event, event.key)
