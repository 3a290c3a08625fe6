"""Requests, a clock to turn, and scripted executors and egresses that speak over a real bus."""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from pydantic import BaseModel

from contracts import subjects
from contracts.client import FinishReason, Priority, Sampling
from contracts.frames import FRAME_ENCODER, Credit, LeaseReply
from contracts.internal import (
    AdmitReply,
    Beat,
    CancelNotice,
    Done,
    Inventory,
    InventoryCall,
    Lease,
    Stamps,
    Work,
)
from contracts.sessions import (
    SESSION_CALL,
    AdoptSession,
    FailSession,
    Progress,
    ProgressQuery,
    ProgressReply,
    QueuePosition,
    SettleSession,
)
from contracts.usage import ReceiptEvent
from stages.queueing.ledger import Entry
from stages.queueing.receipts import orphan_receipt
from stages.runtime.bus import Bus
from stages.runtime.clock import new_request_id, now_ms
from tests.support.nats import flushed

if TYPE_CHECKING:
    from tests.queueing.conftest import Queueing


class FakeClock:
    """Monotonic seconds and unix milliseconds that a test moves."""

    def __init__(self) -> None:
        self.seconds = 1000.0
        self.offset_ms = now_ms() - self.seconds * 1000

    def now_s(self) -> float:
        return self.seconds

    def now_ms(self) -> float:
        return self.seconds * 1000 + self.offset_ms


def make_work(prompt: int = 10, **changes: Any) -> Work:
    """A routed request of pool p."""
    fields: dict[str, Any] = {
        "request_id": new_request_id(),
        "tenant": "acme",
        "egress": "e",
        "door": "grpc",
        "route": "default",
        "model": "m",
        "model_named": False,
        "pool": "p",
        "reason": "route default",
        "prompt_ids": list(range(prompt)),
        "max_tokens": 20,
        "sampling": Sampling(seed=1),
        "priority": Priority.NORMAL,
        "deadline_ms": int(now_ms()) + 60_000,
        "generation": 1,
        "stamps": Stamps(received=now_ms()),
    }
    return Work(**fields | changes)


def make_entry(work: Work, arrival: int = 1) -> Entry:
    """As the service makes it."""
    raw = work.model_dump_json().encode()
    bare = work.model_copy(update={"prompt_ids": []})
    return Entry(bare, raw, len(work.prompt_ids), stream_seq=arrival, arrival=arrival)


def make_receipt(work: Work, reason: FinishReason) -> ReceiptEvent:
    """What an egress would write."""
    return orphan_receipt(make_entry(work), reason, now_ms())


class ScriptedExecutor:
    """Speaks credit and takes leases; `answer` decides on each, None = no answer at all."""

    def __init__(self, bus: Bus, name: str = "x", slots: int = 2, kv_tokens: int = 4096) -> None:
        self._bus = bus
        self.name, self.slots, self.kv_tokens = name, slots, kv_tokens
        self.leases: asyncio.Queue[Lease] = asyncio.Queue()
        self.cancelled: asyncio.Queue[str] = asyncio.Queue()
        self.running: dict[str, tuple[int, int]] = {}
        self.most_running = 0
        self.answer: Callable[[Lease], bool | str | None] = lambda lease: True
        self.epoch = 0  # highest known: a lease of a lower one is refused
        self.refused: asyncio.Queue[Lease] = asyncio.Queue()
        self.silent = False  # otherwise it repeats its credit, as executors do
        self.away = False  # does not hear who asks for its inventory
        self._seq = 0
        self.listening: Subscription | None = None

    async def start(self) -> None:
        subject = subjects.lease(self.name)
        self.listening = await self._bus.serve(subject, Lease, self._on_lease)
        await self._bus.serve(subjects.INVENTORY, InventoryCall, self._on_inventory)
        await self._bus.listen(subjects.CANCEL_ALL, self._on_cancel)
        await self.speak()
        self._bus.spawn(self._repeat())

    async def _repeat(self) -> None:
        while not self._bus.client.is_closed:
            await asyncio.sleep(0.3)
            if not self.silent and not self._bus.client.is_closed:
                await self.speak()

    def credit(self) -> Credit:
        self._seq += 1
        return Credit(
            executor=self.name,
            pool="p",
            seq=self._seq,
            free_slots=self.slots - len(self.running),
            free_kv_tokens=self.kv_tokens - sum(n for _, n in self.running.values()),
            running=[(name, attempt) for name, (attempt, _) in self.running.items()],
        )

    async def speak(self) -> None:
        await self._bus.publish(subjects.credit("p"), FRAME_ENCODER.encode(self.credit()))
        await flushed(self._bus)

    async def finish(self, request_id: str) -> None:
        self.running.pop(request_id)
        await self.speak()

    async def next_lease(self, timeout_s: float = 20.0) -> Lease:
        return await asyncio.wait_for(self.leases.get(), timeout_s)

    async def _on_lease(self, lease: Lease, _: Msg) -> bytes | None:
        if lease.epoch < self.epoch:
            self.refused.put_nowait(lease)
            return FRAME_ENCODER.encode(LeaseReply(False, self.credit(), "of an earlier owner"))
        self.epoch = lease.epoch
        self.leases.put_nowait(lease)
        answer = self.answer(lease)
        if answer is None:
            return None
        if answer is not True:
            fatal = isinstance(answer, str)
            reply = LeaseReply(False, self.credit(), answer or "no", fatal=fatal)
        else:
            need = -(-lease.work.tokens // 64) * 64
            self.running[lease.work.request_id] = (lease.attempt, need)
            self.most_running = max(self.most_running, len(self.running))
            reply = LeaseReply(True, self.credit())
        return FRAME_ENCODER.encode(reply)

    async def _on_inventory(self, call: InventoryCall, _: Msg) -> Inventory | None:
        if self.away or call.pool not in (None, "p"):
            return None
        self.epoch = max(self.epoch, call.epoch)
        running = [(name, attempt) for name, (attempt, _) in self.running.items()]
        return Inventory(executor=self.name, pool="p", running=running)

    def _on_cancel(self, msg: Msg) -> None:
        notice = CancelNotice.model_validate_json(msg.data)
        attempt, _ = self.running.get(notice.request_id, (None, 0))
        if attempt is not None and notice.attempt in (None, attempt):
            del self.running[notice.request_id]
            self.cancelled.put_nowait(notice.request_id)


class ScriptedEgress:
    """Knows sessions by `progress`; `holds` says whether FailSession finds its session."""

    def __init__(self, bus: Bus, name: str = "e") -> None:
        self._bus = bus
        self.name = name
        self.progress: dict[str, Progress] = {}
        self.failed: asyncio.Queue[FailSession] = asyncio.Queue()
        self.positions: asyncio.Queue[dict[str, int]] = asyncio.Queue()
        self.terms: asyncio.Queue[AdmitReply] = asyncio.Queue()  # told again after a move
        self.holds = True
        self.adopted: asyncio.Queue[AdoptSession] = asyncio.Queue()
        self.adopts = True
        self.questions: list[int] = []  # how many requests each progress query named

    async def start(self) -> None:
        await self._bus.serve(subjects.session(self.name), SESSION_CALL, self._on_call)
        await self.beat()

    async def keep_beating(self) -> None:
        """For tests with the real clock; ends with the bus."""
        while not self._bus.client.is_closed:
            await self.beat()
            await asyncio.sleep(0.3)

    def knows(self, *works: Work) -> None:
        """Their sessions are open here, nothing was delivered."""
        for work in works:
            self.progress[work.request_id] = Progress(
                request_id=work.request_id, open=True, attempt=0, ids=[]
            )

    async def beat(self) -> None:
        beat = Beat(
            stage="egress",
            instance=self.name,
            incarnation=self.name,
            pid=1,
            generation=1,
            ready=True,
            spawned_ms=0,
            sent_ms=now_ms(),
        )
        await self._bus.publish(subjects.beat("egress", self.name), beat)
        await flushed(self._bus)

    async def end(self, work: Work, reason: FinishReason) -> None:
        """Durably, as an egress does."""
        receipt = make_receipt(work, reason)
        await self._bus.store(subjects.usage("receipt", "p"), receipt, receipt.key, 2.0)

    async def _on_call(self, call: BaseModel, _: Msg) -> BaseModel | None:
        match call:
            case ProgressQuery(request_ids=ids):
                self.questions.append(len(ids))
                return ProgressReply(sessions=[self.progress[i] for i in ids if i in self.progress])
            case FailSession():
                self.failed.put_nowait(call)
                return Done(ok=self.holds)
            case SettleSession(settled=settled) if settled.admitted is not None:
                self.terms.put_nowait(settled.admitted)
                return Done(ok=True)
            case AdoptSession():
                self.adopted.put_nowait(call)
                return Done(ok=self.adopts)
            case QueuePosition(positions=positions):
                self.positions.put_nowait(positions)
        return None


async def admit(bus: Bus, work: Work) -> AdmitReply:
    """As routing would, for ingress."""
    return await bus.request(subjects.admit("p"), work, AdmitReply, 10.0)


async def until(condition: Callable[[], bool], timeout_s: float = 20.0) -> None:
    """Wait for something that other tasks bring about."""
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(0.01)


async def receipts(bus: Bus) -> list[ReceiptEvent]:
    """What is stored in the usage stream."""
    stream = await bus.js.stream_info(subjects.USAGE_STREAM)
    found = []
    for seq in range(1, stream.state.last_seq + 1):
        message = await bus.js.get_msg(subjects.USAGE_STREAM, seq)
        found.append(ReceiptEvent.model_validate_json(message.data or b""))
    return found


async def running(bus: Bus, executor: ScriptedExecutor, queueing: "Queueing") -> Work:
    """A request without a deadline that the executor has taken."""
    work = make_work(deadline_ms=2**52)
    await admit(bus, work)
    await executor.next_lease()
    await until(lambda: queueing.service.counters()["running"] == 1)
    return work
