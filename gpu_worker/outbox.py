"""What leaves an executor: token frames, attempts, credit, intervals; in the order they happened."""

import asyncio
from dataclasses import dataclass, field
from typing import Final

from contracts import subjects
from contracts.frames import FRAME_ENCODER, Credit, TokenItem
from contracts.usage import Price
from gpu_worker.driver import Intervals, StepReport
from gpu_worker.events import AttemptFinish, book, refused_item, to_attempt, to_frames, to_item
from gpu_worker.roster import Held, Roster
from gpu_worker.timekeeping import Identity, Timekeeper
from stages.runtime.bus import Bus
from stages.runtime.clock import now_ms

STORE_S: Final = 60.0  # how long a usage event is tried again while the bus is away


@dataclass
class Round:
    """What one step report means for others."""

    items: list[tuple[str, TokenItem]] = field(default_factory=list)  # egress, item
    finished: list[tuple[Held, AttemptFinish]] = field(default_factory=list)


class Outbox:
    """Publishes for one executor. `draining` makes its credit zero and its idle time `drain`."""

    def __init__(self, bus: Bus, roster: Roster, identity: Identity, spawned_ms: float) -> None:
        self._bus = bus
        self._roster = roster
        self._me = identity
        self._price: Price = identity.price
        self._time = Timekeeper(identity, spawned_ms, now_ms())
        self._reports: asyncio.Queue[StepReport] = asyncio.Queue()
        self._seq = 0
        self._busy_us = 0
        self.draining = False
        self.empty = asyncio.Event()
        self.counts = {"steps": 0.0, "tokens": 0.0, "attempts": 0.0}

    @property
    def interval_end_ms(self) -> float:
        """Where the reported time ends, unix ms."""
        return self._time.end_ms

    def put(self, report: StepReport) -> None:
        """Queue a report; called on the event loop."""
        self._reports.put_nowait(report)

    async def run(self) -> None:
        """Publish reports for ever, one after the other."""
        while True:
            await self._publish(await self._reports.get())

    async def _publish(self, report: StepReport) -> None:
        done = self._interpret(report)
        for egress, frame in to_frames(self._me.executor, done.items, now_ms()).items():
            await self._bus.publish(subjects.tokens(egress), FRAME_ENCODER.encode(frame))
        for held, finish in done.finished:
            self._store_attempt(held, finish)
        if done.finished:
            await self.send_credit()
        if len(self._roster) == 0:
            self.empty.set()
            # booked at once, so that whoever asks after the last answer finds its busy time
            self._bus.spawn(self.store_interval(report.intervals))

    def _interpret(self, report: StepReport) -> Round:
        began_ms = now_ms() - (report.intervals.busy_us - self._busy_us) / 1e3
        self._busy_us = report.intervals.busy_us
        self.counts["steps"] += 1
        done = Round()
        for output in report.outputs:
            held = self._roster.get(output.request_id)
            assert held is not None, "the engine ran a request without a lease"
            book(held, output, began_ms)
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

    def _store_attempt(self, held: Held, finish: AttemptFinish) -> None:
        self.counts["attempts"] += 1
        event = to_attempt(held, finish, self._me, now_ms())
        subject = subjects.usage("attempt", self._me.pool)
        self._bus.spawn(self._bus.store(subject, event, event.key, STORE_S))

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
        await self._bus.publish(subjects.credit(self._me.pool), FRAME_ENCODER.encode(self.credit()))

    async def store_interval(self, total: Intervals) -> None:
        """Book the executor's time since the last call."""
        event = self._time.report(total, draining=self.draining)
        if event is not None:
            subject = subjects.usage("interval", self._me.pool)
            await self._bus.store(subject, event, event.key, STORE_S)
