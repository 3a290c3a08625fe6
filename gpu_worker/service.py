"""Ties the engine to the bus: leases and cancellations in; the outbox carries what comes out."""

import asyncio
import contextlib
import gc
import logging
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from nats.aio.msg import Msg

from contracts import subjects
from contracts.frames import FRAME_ENCODER, LeaseReply
from contracts.internal import CancelNotice, Inventory, InventoryCall, Lease
from contracts.sessions import RepairCall, RepairReply
from contracts.topology import Topology
from contracts.usage import Price
from gpu_worker.config import EngineConfig, device_for
from gpu_worker.driver import EngineThread, StepReport
from gpu_worker.engine import Engine
from gpu_worker.events import to_request
from gpu_worker.fence import Fence
from gpu_worker.outbox import Outbox
from gpu_worker.roster import Held, Roster
from gpu_worker.timekeeping import Identity
from stages.runtime.limits import LOAD_S
from stages.runtime.loops import forever
from stages.runtime.models.store import open_model
from stages.runtime.stage import Context

CREDIT_S: Final = 0.5
REPORT_S: Final = 1.0  # running attempts so far
REPORTS_PER_INTERVAL: Final = 2  # an interval ends where a report does
# Draining ends before stages.runtime.limits.DRAIN_S, the supervisor kills soon after that: requests
# may finish for FINISH_S, are then stopped and given back, and the step that runs may take STEP_S.
FINISH_S: Final = 4.0
STEP_S: Final = 4.5
ENGINE_DIED: Final = 70  # exit status: the engine raised; the supervisor starts a new executor

SWITCH_S: Final = 0.0005  # so that neither loop nor engine waits 5 ms for the interpreter

log = logging.getLogger("headrace.executor")


def engine_config(context: Context, pool_name: str) -> EngineConfig:
    """The engine's settings from the topology."""
    pool, model = context.topology.pools[pool_name], context.topology.model_of(pool_name)
    block = EngineConfig.block_size
    fitting = pool.step_tokens // block * block
    return EngineConfig(
        threads=pool.threads,
        kv_tokens=pool.kv_tokens,
        max_batch=pool.slots,
        step_tokens=pool.step_tokens,
        prefill_chunk=max(block, min(EngineConfig.prefill_chunk, fitting)),
        mixed_chunk=max(block, min(EngineConfig.mixed_chunk, fitting)),
        context=model.context,
        weights=model.weights,
    )


def identity(topology: Topology, generation: int, pool_name: str, executor: str) -> Identity:
    """What usage events say of this executor, as a topology has it."""
    pool = topology.pools[pool_name]
    return Identity(
        executor=executor,
        pool=pool_name,
        model=pool.model,
        zone=pool.zone,
        device=device_for(pool.device),
        generation=generation,
        price=Price(accelerator_hour=pool.price.accelerator_hour, currency=topology.currency),
        fraction=pool.fraction or min(1.0, pool.threads / (os.cpu_count() or 1)),
    )


class ExecutorService:
    """One executor of one pool."""

    def __init__(self, context: Context) -> None:
        pool = context.launch.pool
        assert pool is not None, "an executor belongs to a pool"
        self._bus = context.bus
        self._me = identity(context.topology, context.generation, pool, context.launch.incarnation)
        self._source = context.topology.model_of(pool).source
        self._config = engine_config(context, pool)
        config = self._config
        self._roster = Roster(config.max_batch, config.kv_tokens, config.block_size)
        self._outbox = Outbox(self._bus, self._roster, self._me, context.launch.spawned_ms)
        self._fence = Fence()
        self._tasks: list[asyncio.Task[None]] = []
        self._leases = self._refused = self._reports = 0

    async def start(self) -> None:
        """Load the model in the engine's thread, then subscribe and announce credit."""
        loop = asyncio.get_running_loop()
        hand_over = onto(loop, self._outbox.put)
        sys.setswitchinterval(SWITCH_S)
        self._engine = EngineThread(self._make_engine, hand_over, _exit_on_failure)
        self._engine.start()
        loaded = await asyncio.to_thread(self._engine.wait_ready, LOAD_S)
        gc.enable()  # see gpu_worker.postponed: nothing large is made from here on
        self._me = replace(self._me, fingerprint=str(loaded.fingerprint))
        self._outbox.identify(self._me)
        for line in loaded.memory.lines():
            log.info(line)
        await self._bus.serve(subjects.lease(self._me.executor), Lease, self._on_lease)
        await self._bus.serve(subjects.repair(self._me.executor), RepairCall, self._on_repair)
        await self._bus.serve(subjects.INVENTORY, InventoryCall, self._on_inventory)
        await self._bus.listen(subjects.CANCEL_ALL, self._on_cancel)
        work = (
            forever("publishing", self._outbox.next_report, 0.0),
            forever("credit", self._outbox.send_credit, CREDIT_S),
            forever("attempts and intervals", self._report, REPORT_S),
        )
        self._tasks = [loop.create_task(each) for each in work]

    async def prepare(self, topology: Topology) -> None:
        """Fine: whatever an executor is made with, control replaces it for."""

    async def reconfigure(self, topology: Topology, generation: int) -> None:
        """Take over what is said of it: price, zone, fraction. Its time is split here, and what
        runs costs the old price for its part until now."""
        pool, executor = self._me.pool, self._me.executor
        if pool in topology.pools:
            found = identity(topology, generation, pool, executor)
            # what it was made with stays true of this process until it is replaced
            self._me = replace(
                found,
                model=self._me.model,
                device=self._me.device,
                fingerprint=self._me.fingerprint,
            )
        else:  # the pool goes, and this process with it
            self._me = replace(self._me, generation=generation)
        self._outbox.identify(self._me, self._engine.intervals)

    async def drain(self) -> None:
        """Take no more leases, let requests finish for a while, give the rest back, book all."""
        self._outbox.draining = True
        try:
            await self._outbox.send_credit()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._emptied(), FINISH_S)
        finally:
            await self._end()

    def counters(self) -> dict[str, float]:
        """Since start."""
        return {
            **self._outbox.counts,
            "usage_unstored": self._outbox.unstored,
            "leases": self._leases,
            "refused_leases": self._refused,
            "num_requests_running": len(self._roster),
            "kv_tokens_free": self._roster.free_kv_tokens,
            "busy_s": self._engine.intervals.busy_us / 1e6,
        }

    def detail(self) -> dict[str, str]:
        """Who this executor is; `interval_end_ms` is where its booked time ends."""
        return {
            "pool": self._me.pool,
            "model": self._me.model,
            "zone": self._me.zone,
            "device": self._me.device,
            "fraction": f"{self._me.fraction:g}",
            "fingerprint": self._me.fingerprint,
            "interval_end_ms": f"{self._outbox.interval_end_ms:.3f}",
        }

    def _make_engine(self) -> Engine:
        engine = Engine(open_model(self._source), self._config)
        engine.warm_up()
        return engine

    async def _end(self) -> None:
        """Stop the engine; whether it heeds or not, all attempts and all time are booked, and what
        was not finished is given back."""
        for held in self._roster.all():
            held.moving = True
            self._engine.cancel(held.engine_id)
        try:
            await asyncio.to_thread(self._engine.stop, STEP_S)
        except TimeoutError as error:
            log.warning("%s; its requests are booked as they were before it", error)
        finally:
            await self._outbox.close(self._engine.intervals)
            for task in self._tasks:
                task.cancel()

    async def _emptied(self) -> None:
        self._outbox.empty.clear()
        if len(self._roster):
            await self._outbox.empty.wait()

    async def _on_lease(self, lease: Lease, _: Msg) -> bytes:
        reason = self._objection(lease)
        held = None if reason else self._roster.take(lease)
        if held is None:
            self._refused += 1
            reason = reason or "no room, or already here"
            return FRAME_ENCODER.encode(LeaseReply(False, self._outbox.credit(), reason))
        self._leases += 1
        for older in self._roster.attempts_of(lease.work.request_id):
            if older is not held:
                self._cancel(older)
        self._engine.submit(to_request(held))
        return FRAME_ENCODER.encode(LeaseReply(True, self._outbox.credit()))

    def _objection(self, lease: Lease) -> str:
        """Why no lease of this kind is taken now; empty = none."""
        if self._outbox.draining:
            return "draining"
        pool = lease.work.pool or self._me.pool
        if not self._fence.admits(pool, lease.epoch):
            known = self._fence.known(pool)
            return f"lease of epoch {lease.epoch}, but pool {pool} has an owner of epoch {known}"
        return ""

    async def _on_repair(self, call: RepairCall, _: Msg) -> RepairReply:
        return self._outbox.repairs.answer(call)

    async def _on_inventory(self, call: InventoryCall, _: Msg) -> Inventory | None:
        if call.pool not in (None, self._me.pool):
            return None
        self._fence.admits(self._me.pool, call.epoch)
        return Inventory(
            executor=self._me.executor, pool=self._me.pool, running=self._roster.running
        )

    def _on_cancel(self, msg: Msg) -> None:
        notice = CancelNotice.model_validate_json(msg.data)
        if not self._fence.admits(notice.pool or self._me.pool, notice.epoch):
            return
        for held in self._roster.attempts_of(notice.request_id):
            # The owner of a pool that it has left knows nothing of how it goes on here.
            theirs = notice.pool in (None, held.lease.work.pool or self._me.pool)
            if theirs and notice.attempt in (None, held.lease.attempt):
                self._cancel(held)

    def _cancel(self, held: Held) -> None:
        held.cancelled = True
        self._engine.cancel(held.engine_id)

    async def _report(self) -> None:
        """Both describe the same moment: nothing runs in between."""
        try:
            if self._reports % REPORTS_PER_INTERVAL == 0:
                self._outbox.store_interval(self._engine.intervals)
        finally:
            self._reports += 1
            await self._outbox.report_attempts()


def onto(
    loop: asyncio.AbstractEventLoop, put: Callable[[StepReport], None]
) -> Callable[[StepReport], None]:
    """Hand reports from the engine's thread to `put` on the loop, while there is one."""

    def hand_over(report: StepReport) -> None:
        # A loop that closed has nobody left to tell. Asking first would not help: it may close
        # between the question and the call, from the other thread.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(put, report)

    return hand_over


def _exit_on_failure(error: BaseException | None) -> None:
    """Called last in the engine's thread: a process without its engine is of no use."""
    if error is not None:
        log.critical("the engine failed", exc_info=error)
        logging.shutdown()
        os._exit(ENGINE_DIED)
