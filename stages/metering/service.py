"""Metering: events from the stream into DuckDB, commit, then ack; snapshots beside it."""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

import duckdb
import nats.errors
from nats.aio.msg import Msg

from contracts import subjects
from contracts.errors import ErrorCode, HeadraceError
from contracts.internal import SnapshotCall, SnapshotReply
from contracts.topology import Topology
from stages.metering.events import Received
from stages.metering.schema import open_database
from stages.metering.snapshot import Published, Publisher
from stages.metering.source import UsageSource, received
from stages.metering.writer import Tally, Writer
from stages.runtime.stage import Context
from stages.runtime.streams import ensure_streams

SNAPSHOT_DEADLINE_S: Final = 5.0
DRAIN_S: Final = 4.0  # of limits.DRAIN_S; the rest is for the last copy
_RETRY_S: Final = 0.5
_POLL_S: Final = 0.02

T = TypeVar("T")
log = logging.getLogger("headrace.metering")


class MeteringService:
    """Owns the live database (one thread) and the consumer of the usage stream (the loop)."""

    def __init__(self, context: Context) -> None:
        self._bus = context.bus
        self._topology = context.topology
        folder = context.launch.state / "metering"
        self._database_path = folder / "usage.duckdb"
        self._snapshot_path = folder / "snapshot.duckdb"
        self._source = UsageSource(context.bus.js)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="duckdb")
        self._publishing = asyncio.Lock()
        self._stopping = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._tally = Tally()
        self._snapshots = 0
        self._published: Published | None = None

    async def start(self) -> None:
        """Open the database, publish a first snapshot, then consume.

        Raises `duckdb.Error` (locked, damaged), `SchemaError` or bus errors.
        """
        await self._in_thread(self._open)
        await self._publish()
        await ensure_streams(self._bus.js, self._topology, only=subjects.USAGE_STREAM)
        await self._source.open()
        self._serving = await self._bus.serve(
            subjects.SNAPSHOT, SnapshotCall, self._answer_snapshot
        )
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._consume()), loop.create_task(self._publish_often())]

    def _open(self) -> None:
        self._connection = open_database(self._database_path)
        self._writer = Writer(self._connection)
        self._publisher = Publisher(self._connection, self._snapshot_path)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    async def _consume(self) -> None:
        while not (self._stopping.is_set() and await self._is_caught_up()):
            try:
                messages = await self._source.fetch(0.1 if self._stopping.is_set() else 1.0)
                if messages:
                    await self._store(messages)
            except Exception as error:
                log.exception("events stay in the stream; trying again")
                await asyncio.sleep(_RETRY_S)
                await self._recover(error)

    async def _recover(self, error: Exception) -> None:
        """After a database error open it again (a fatal one leaves it unusable); else the consumer."""
        try:
            if isinstance(error, duckdb.Error):
                await self._in_thread(self._reopen)
            else:
                await self._source.recover()
        except Exception:
            log.exception("not recovered yet")

    def _reopen(self) -> None:
        self._connection.close()
        self._published = None
        self._open()

    async def _is_caught_up(self) -> bool:
        """False also while the bus does not answer."""
        try:
            return await self._source.unfinished(await self._source.last_sequence()) == 0
        except (OSError, nats.errors.Error):
            return False

    async def _store(self, messages: list[Msg]) -> None:
        """Commit, then ack: a crash between the two only brings duplicates, which the keys stop."""
        try:
            batch = [received(message) for message in messages]
            self._tally += await self._in_thread(lambda: self._commit(batch))
        except BaseException:
            for message in messages:
                await message.nak(delay=_RETRY_S)
            raise
        await self._acknowledge(messages)

    def _commit(self, batch: list[Received]) -> Tally:
        return self._writer.store(batch)

    async def _acknowledge(self, messages: list[Msg]) -> None:
        for message in messages:
            await message.ack()

    async def _publish_often(self) -> None:
        while not self._stopping.is_set():
            pause_s = self._published.pause_s if self._published else _RETRY_S
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), pause_s)
            try:
                await self._publish()
            except Exception:
                log.exception("no new snapshot; the last one stays")

    async def _publish(self) -> Published:
        """A snapshot of all that is committed; the present one if nothing has changed."""
        async with self._publishing:
            published = self._published
            if published is None or published.changes != self._writer.changes:
                published = await self._in_thread(
                    lambda: self._publisher.publish(self._writer.changes)
                )
                self._published = published
                self._snapshots += 1
            return published

    async def _answer_snapshot(self, _call: SnapshotCall, _msg: Msg) -> SnapshotReply:
        try:
            async with asyncio.timeout(SNAPSHOT_DEADLINE_S):
                await self._catch_up()
                published = await self._publish()
        except TimeoutError:
            raise HeadraceError(
                ErrorCode.DEADLINE_EXCEEDED,
                f"usage events still wait to be stored after {SNAPSHOT_DEADLINE_S:g} s",
            ) from None
        return SnapshotReply(
            path=str(self._snapshot_path.resolve()),
            rows=published.rows,
            published_ms=published.published_ms,
        )

    async def _catch_up(self) -> None:
        newest = await self._source.last_sequence()
        with self._source.hurrying():
            while await self._source.unfinished(newest):  # noqa: ASYNC110 - only the server knows
                await asyncio.sleep(_POLL_S)

    async def prepare(self, topology: Topology) -> None:
        """Fine: nothing to load."""

    async def reconfigure(self, topology: Topology, generation: int) -> None:
        """Take over the bound of the usage stream (`bus.store_bytes`)."""
        await ensure_streams(self._bus.js, topology, only=subjects.USAGE_STREAM)
        self._topology = topology

    async def drain(self) -> None:
        """Store what is pending, publish the last snapshot and close the database."""
        self._stopping.set()
        with self._source.hurrying():
            _, late = await asyncio.wait(self._tasks, timeout=DRAIN_S)
        for task in late:
            task.cancel()
        try:
            await self._publish()
        finally:
            await self._serving.unsubscribe()
            await self._in_thread(self._connection.close)
            self._thread.shutdown(wait=False)

    def counters(self) -> dict[str, float]:
        """Events since start, what became of them, snapshots, and events not fetched yet."""
        return {
            "events": self._tally.events,
            "rows": self._tally.rows,
            "duplicates": self._tally.duplicates,
            "rejected": self._tally.rejected,
            "snapshots": self._snapshots,
            "lag": self._source.lag,
        }

    def detail(self) -> dict[str, str]:
        """Where the snapshot is and how large the database is (bytes)."""
        size = self._database_path.stat().st_size if self._database_path.exists() else 0
        return {"snapshot": str(self._snapshot_path), "database_bytes": str(size)}
