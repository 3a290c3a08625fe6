"""Callers that wait for a snapshot at the same time, or while metering drains."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import duckdb
import pytest
from nats.aio.msg import Msg

from stages.metering import source
from stages.metering.service import MeteringService
from stages.runtime.bus import Bus
from stages.runtime.launch import BusAddress
from tests.metering.support import context, make_stream, publish, receipt, snapshot

NEVER_S = 600.0  # longer than a test may take: only hurry ends the gathering


class HeldMetering(MeteringService):
    """Holds the first batch back before its ack, and each later one until its fetch is allowed."""

    async def start(self) -> None:
        self.may_ack, self.may_fetch = asyncio.Event(), asyncio.Event()
        self.committed = False
        self.waited_for: set[int] = set()
        self._fetch, self._unfinished = self._source.fetch, self._source.unfinished
        self._source.fetch = self._held_fetch  # type: ignore[method-assign]
        self._source.unfinished = self._noted_unfinished  # type: ignore[method-assign]
        await super().start()

    async def _held_fetch(self, wait_s: float = 1.0) -> list[Msg]:
        if self.committed:
            await self.may_fetch.wait()
        return await self._fetch(wait_s)

    async def _noted_unfinished(self, up_to: int) -> int:
        self.waited_for.add(up_to)
        return await self._unfinished(up_to)

    async def _acknowledge(self, messages: list[Msg]) -> None:
        self.committed = True
        await self.may_ack.wait()
        await super()._acknowledge(messages)


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not holds():
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("second", ["snapshot", "drain"])
async def test_who_is_served_first_does_not_make_the_others_wait(
    bus: Bus,
    bus_address: BusAddress,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    second: str,
) -> None:
    monkeypatch.setattr(source, "GATHER_S", NEVER_S)
    await make_stream(bus)
    metering = HeldMetering(context(bus, bus_address, tmp_path))
    await metering.start()
    await publish(bus, receipt(1))
    first = asyncio.create_task(snapshot(bus))
    await until(lambda: metering.committed and metering.waited_for == {1})
    await publish(bus, receipt(2))
    if second == "snapshot":
        other: asyncio.Task[object] = asyncio.create_task(snapshot(bus))
        await until(lambda: metering.waited_for == {1, 2})
    else:
        other = asyncio.create_task(metering.drain())
        await until(metering._stopping.is_set)
    metering.may_ack.set()
    assert (await first).rows == 1
    metering.may_fetch.set()
    await other
    if second == "snapshot":
        await metering.drain()
    file = str(tmp_path / "metering" / "snapshot.duckdb")
    with duckdb.connect(file, read_only=True) as reader:
        assert reader.execute("SELECT count(*) FROM receipts").fetchone() == (2,)
