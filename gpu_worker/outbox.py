"""What leaves an executor: token frames, attempts, credit, intervals; in the order they happened."""

import asyncio
import contextlib
import logging
from dataclasses import dataclass, field
from typing import Final

import nats.errors
from pydantic import BaseModel

from contracts import subjects
from contracts.frames import FRAME_ENCODER, Credit, TokenItem
from contracts.internal import Release
from contracts.usage import AttemptReport
from gpu_worker.driver import Intervals, StepReport
from gpu_worker.events import AttemptFinish, book, refused_item, to_attempt, to_frames, to_item
from gpu_worker.repairs import Repairs
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
        self.repairs = Repairs(roster)
        self._time = Timekeeper(identity, spawned_ms, now_ms())
        self._usage = DurableSender(bus)
        self._reports: asyncio.Queue[StepReport] = asyncio.Queue()
        self._booked = Intervals()  # the engine's time when the last report was made
        self._moved: list[tuple[str, int]] = []
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

    def identify(self, identity: Identity, total: Intervals | None = None) -> None:
        """From now on the executor says this of itself; time up to `total` and what attempts took
        so far keep their price."""
        if total is not None:
            self.store_interval(total)
        for held in self._roster.all():
            held.settle(self._me.price.accelerator_hour)
        self._me = self._time.identity = identity
        self.repairs.fingerprint = identity.fingerprint

    async def close(self, total: Intervals) -> None:
        """Book what is left: attempts whose end nobody reported, and time up to `total`; then give
        back what could not finish. About 1 s.

        The engine must have stopped, or have been given up. Frames and attempts of what is given
        back go out before that.
        """
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._reports.join(), REPORTS_S)
        for held in self._roster.all():
            self._roster.release(held.engine_id)
            self._store_attempt(held, "cancelled" if held.cancelled else "moved", now_ms())
        self._store_time(total)
        await self._usage.drain(STORED_S)
        if self._moved:
            release = Release(executor=self._me.executor, pool=self._me.pool, attempts=self._moved)
            await self._say(subjects.release(self._me.pool), release)

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

    async def _say(self, subject: str, payload: BaseModel | bytes) -> None:
        """Publish what may get lost: tokens come again by a later attempt, credit by itself, and
        what nobody released is missed in the credit of its executor."""
        try:
            await self._bus.publish(subject, payload)
        except (OSError, nats.errors.Error) as error:
            self.counts["unsent"] += 1
            log.warning("not sent on %s: %r", subject, error)

    def _interpret(self, report: StepReport) -> Round:
        self.counts["steps"] += 1
        self._booked = report.intervals
        done = Round()
        for output in report.outputs:
            held = self._roster.get(output.request_id)
            assert held is not None, "the engine ran a request without a lease"
            book(held, output, report.began_ms)
            self.counts["tokens"] += len(output.token_ids)
            finish: AttemptFinish | None = output.finish
            if finish == "cancelled" and held.moving and not held.cancelled:
                finish = "moved"  # no terminal: the session goes on elsewhere
            if not held.cancelled and (output.token_ids or finish not in (None, "moved")):
                fingerprint = "" if held.introduced else self._me.fingerprint
                held.introduced = True
                done.items.append((held.egress, to_item(held, output, fingerprint)))
            if finish:
                done.finished.append((held, finish))
                self._end(held, finish)
        for refused, error in report.refused:
            held = self._roster.get(refused)
            assert held is not None, "the engine refused a request without a lease"
            done.items.append((held.egress, refused_item(held, str(error))))
            done.finished.append((held, "error"))
            self._end(held, "error", str(error))
        return done

    def _end(self, held: Held, finish: AttemptFinish, error: str | None = None) -> None:
        """Its room is free; its tokens can be asked for again for a while."""
        self._roster.release(held.engine_id)
        self.repairs.keep(held, finish, error)

    def _store_attempt(self, held: Held, finish: AttemptFinish, ended_ms: float) -> None:
        self.counts["attempts"] += 1
        if finish == "moved":
            self._moved.append((held.lease.work.request_id, held.lease.attempt))
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

    async def report_attempts(self) -> None:
        """Say what the running attempts have taken so far: they are closed by it if we are killed."""
        running = self._roster.all()
        if running:
            now = now_ms()
            report = AttemptReport(
                executor=self._me.executor,
                pool=self._me.pool,
                sent_ms=now,
                attempts=[to_attempt(held, "lost", self._me, now) for held in running],
            )
            await self._say(subjects.attempts(self._me.pool), report)

    def store_interval(self, total: Intervals) -> None:
        """Book the executor's time since the last call, up to `total`, the engine's own count.

        Steps whose report is still on its way are left for the next time, so that the busy time
        of intervals is that of the attempts.
        """
        self._store_time(total if total.busy_us == self._booked.busy_us else self._booked)

    def _store_time(self, total: Intervals) -> None:
        event = self._time.report(total, draining=self.draining)
        if event is not None:
            self._usage.put(subjects.usage("interval", self._me.pool), event, event.key)
