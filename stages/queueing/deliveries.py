"""One pool's consumer of HR_QUEUE: it hands its owner the ack subject of each stored request.

The consumer is named for pool and epoch. A new owner deletes the one before it, so that acks of an
earlier owner remove nothing. Requests come as headers only: their owner stored or read them itself.
"""

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

import nats.errors
import nats.js.errors
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

from contracts import subjects
from stages.runtime.bus import Bus

ACK_WAIT_S: Final = 7200.0  # above any deadline: nothing comes again by itself
ACK_S: Final = 1.0
ACK_TRIES: Final = 3
UNNAMED_S: Final = 3.0
FINISHED_KEPT: Final = 100_000
MESSAGE_ID: Final = "Nats-Msg-Id"

log = logging.getLogger("headrace.queueing")


@dataclass(frozen=True)
class Delivery:
    """A stored request that the consumer has named."""

    seq: int
    request_id: str
    hop: int
    at_s: float


class Deliveries:
    """Ack subjects by stream sequence. `holds` says whether we still own the pool."""

    def __init__(
        self,
        bus: Bus,
        pool: str,
        epoch: int,
        holds: Callable[[], bool],
        now_s: Callable[[], float],
    ) -> None:
        self._bus = bus
        self._pool, self._epoch = pool, epoch
        self._holds, self._now_s = holds, now_s
        self._subscription: Subscription | None = None
        self._made = 0
        self._replies: dict[int, str] = {}
        self._finished: dict[int, None] = {}  # in the order of time
        self.fresh: dict[int, Delivery] = {}  # nobody has claimed them yet
        self._missing: dict[int, float] = {}  # stored, not named: since when
        self._missed: set[int] = set()  # for which a consumer was replaced once
        self._reconnects = 0
        self.acking = 0  # acks that the server has not answered yet
        self.stale = False  # the server does not know our consumer: acks remove nothing

    async def open(self) -> None:
        """Replace every earlier consumer of the pool by ours: all unfinished requests come (again).

        Raises bus errors; may be called again.
        """
        await self.close()
        self._made += 1
        self._reconnects = self._bus.client.stats["reconnects"]
        self._replies.clear()
        self.fresh.clear()
        inbox = self._bus.client.new_inbox()
        self._subscription = await self._bus.listen(inbox, self._on_delivery)
        await self._delete_earlier()
        if not self._holds():
            return
        await self._bus.js.add_consumer(subjects.QUEUE_STREAM, self._config(inbox))
        self.stale = False

    async def close(self) -> None:
        """Hear nothing more. The consumer itself is deleted by the next owner."""
        if self._subscription is not None and not self._bus.client.is_closed:
            await self._subscription.unsubscribe()
        self._subscription = None

    def claim(self, seq: int) -> None:
        """The request under this number is known."""
        self.fresh.pop(seq, None)

    def names(self, request_id: str) -> bool:
        """Whether a request is stored that nobody has claimed yet."""
        return any(delivery.request_id == request_id for delivery in self.fresh.values())

    def incomplete(self, seqs: Iterable[int]) -> bool:
        """Whether the consumer should be replaced: the server does not know it, the connection broke
        (what it sent meanwhile is lost), or it has not named a stored request for seconds."""
        if self.stale or self._reconnects != self._bus.client.stats["reconnects"]:
            return True
        now_s = self._now_s()
        missing = {seq for seq in seqs if seq not in self._replies and seq not in self._missed}
        self._missing = {seq: self._missing.get(seq, now_s) for seq in missing}
        late = {seq for seq, since_s in self._missing.items() if now_s - since_s > UNNAMED_S}
        self._missed |= late  # the next consumer does not name it either: it is not there any more
        return bool(late)

    def finish(self, seq: int) -> None:
        """Remove a stored request: now, or as soon as the consumer names it."""
        self.fresh.pop(seq, None)
        self._finished.pop(seq, None)
        self._finished[seq] = None
        while len(self._finished) > FINISHED_KEPT:
            del self._finished[next(iter(self._finished))]
        reply = self._replies.pop(seq, None)
        if reply is not None:
            self._remove(seq, reply)

    def _config(self, inbox: str) -> ConsumerConfig:
        name = f"{self._pool}-{self._epoch}-{self._made}"
        return ConsumerConfig(
            name=name,
            durable_name=name,
            deliver_subject=inbox,
            deliver_policy=DeliverPolicy.ALL,
            filter_subject=subjects.stored(self._pool),
            ack_policy=AckPolicy.EXPLICIT,
            ack_wait=ACK_WAIT_S,
            max_ack_pending=-1,
            headers_only=True,
            mem_storage=True,  # its state is which requests were named: replaced, not restored
        )

    async def _delete_earlier(self) -> None:
        """Those of lower epochs, and ours; never that of an owner after us."""
        for info in await self._bus.js.consumers_info(subjects.QUEUE_STREAM):
            if info.config.filter_subject != subjects.stored(self._pool):
                continue
            if epoch_of(info.name) > self._epoch or not self._holds():
                return
            try:
                await self._bus.js.delete_consumer(subjects.QUEUE_STREAM, info.name)
            except nats.js.errors.NotFoundError:
                continue

    def _on_delivery(self, msg: Msg) -> None:
        seq = msg.metadata.sequence.stream
        if seq in self._finished:
            self._remove(seq, msg.reply)
            return
        self._replies[seq] = msg.reply
        request_id, _, hop = (msg.headers or {}).get(MESSAGE_ID, "").rpartition(":")
        number = int(hop) if hop.isdigit() else 0
        self.fresh[seq] = Delivery(seq, request_id, number, self._now_s())

    def _remove(self, seq: int, reply: str) -> None:
        self.acking += 1
        self._bus.spawn(self._ack(seq, reply))

    async def _ack(self, seq: int, reply: str) -> None:
        try:
            await self._try_to_ack(seq, reply)
        finally:
            self.acking -= 1

    async def _try_to_ack(self, seq: int, reply: str) -> None:
        """Until the server says that it is gone. What is left comes again with the next consumer."""
        for _ in range(ACK_TRIES):
            if not self._holds():
                return
            try:
                await self._bus.client.request(reply, b"+ACK", timeout=ACK_S)
            except nats.errors.NoRespondersError:
                self.stale = True
                return
            except (OSError, TimeoutError, nats.errors.Error) as error:
                log.info("ack of stored request %d in pool %s: %r", seq, self._pool, error)
            else:
                return
        self.stale = True


def epoch_of(consumer: str) -> int:
    """Of the owner that made a consumer; 0 for any other name."""
    parts = consumer.rsplit("-", 2)
    return int(parts[1]) if len(parts) == 3 and parts[1].isdigit() else 0
