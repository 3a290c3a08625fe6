"""The usage stream as metering reads it: one durable pull consumer."""

import asyncio
import contextlib
import logging
from collections.abc import Iterator
from typing import Final

import nats.errors
import nats.js.errors
from nats.aio.msg import Msg
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

from contracts import subjects
from stages.metering.events import Received

CONSUMER: Final = "metering"
BATCH: Final = 2000
WAIT_S: Final = 1.0  # for the first event of a batch
GATHER_S: Final = 1.0  # others may arrive meanwhile: a transaction costs 15 ms, however small
REST_S: Final = 0.05  # for those that have arrived
ACK_WAIT_S: Final = 30.0

log = logging.getLogger("headrace.metering")


class UsageSource:
    """Fetches batches; they come again until they are acknowledged."""

    def __init__(self, js: JetStreamContext) -> None:
        self._js = js
        self._pull: JetStreamContext.PullSubscription | None = None
        self.lag = 0
        self._hurry = asyncio.Event()
        self._hurried = 0  # how many are in `hurrying`: each has events of its own to wait for

    @contextlib.contextmanager
    def hurrying(self) -> Iterator[None]:
        """While anybody is inside, somebody waits for what is stored: batches gather no longer."""
        self._hurried += 1
        self._hurry.set()
        try:
            yield
        finally:
            self._hurried -= 1
            if not self._hurried:
                self._hurry.clear()

    async def open(self) -> None:
        """Make the consumer anew: what an earlier process fetched and never acked comes at once.

        Only one metering process lives (it holds the database's lock). An ack that an earlier one
        still has under way is for a committed event, so it may count.
        """
        with contextlib.suppress(nats.js.errors.NotFoundError):
            await self._js.delete_consumer(subjects.USAGE_STREAM, CONSUMER)
        await self._bind()

    async def _bind(self) -> None:
        config = ConsumerConfig(
            durable_name=CONSUMER,
            deliver_policy=DeliverPolicy.ALL,
            ack_policy=AckPolicy.EXPLICIT,
            ack_wait=ACK_WAIT_S,
            max_ack_pending=4 * BATCH,
        )
        await self._js.add_consumer(subjects.USAGE_STREAM, config)
        self._pull = await self._js.pull_subscribe_bind(
            consumer=CONSUMER, stream=subjects.USAGE_STREAM
        )

    async def fetch(self, wait_s: float = WAIT_S) -> list[Msg]:
        """The next events, none after `wait_s`. Raises bus errors; call `recover` after one."""
        assert self._pull is not None
        try:
            messages: list[Msg] = await self._pull.fetch(1, timeout=wait_s)
        except (TimeoutError, nats.errors.TimeoutError):
            self.lag = 0
            return []
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._hurry.wait(), GATHER_S)
        with contextlib.suppress(TimeoutError, nats.errors.TimeoutError):
            messages += await self._pull.fetch(BATCH - 1, timeout=REST_S)
        self.lag = messages[-1].metadata.num_pending
        return messages

    async def recover(self) -> None:
        """After an error: make the consumer again if it is gone; raises bus errors."""
        if self._pull is not None:
            with contextlib.suppress(nats.errors.Error, OSError):
                await self._pull.unsubscribe()
        await self._bind()

    async def last_sequence(self) -> int:
        """The newest event stored in the stream."""
        info = await self._js.stream_info(subjects.USAGE_STREAM)
        return int(info.state.last_seq)

    async def unfinished(self, up_to: int) -> int:
        """How many events are not acknowledged yet; 0 if all up to a sequence are."""
        info = await self._js.consumer_info(subjects.USAGE_STREAM, CONSUMER)
        if info.ack_floor is not None and info.ack_floor.stream_seq >= up_to:
            return 0
        return int(info.num_pending or 0) + int(info.num_ack_pending or 0)


def received(message: Msg) -> Received:
    """What the writer needs of a message."""
    meta = message.metadata
    return Received(
        message.subject, message.data, meta.sequence.stream, meta.timestamp.timestamp() * 1000
    )
