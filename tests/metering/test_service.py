"""The service against a real bus, as a process where a process matters."""

import asyncio
import contextlib
import json
import random
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import duckdb
import pytest

from contracts import subjects
from contracts.internal import Beat
from contracts.usage import UsageEvent
from stages.metering.service import MeteringService
from stages.runtime.bus import Bus
from stages.runtime.launch import BusAddress
from tests.metering.support import (
    TOPOLOGY,
    attempt,
    context,
    interval,
    launch,
    make_stream,
    publish,
    receipt,
    snapshot,
    traffic,
)

READER = """
import duckdb, json, sys
with duckdb.connect(sys.argv[1], read_only=True) as reader:
    print(json.dumps(reader.execute(sys.argv[2]).fetchall()))
"""


def query(path: Path | str, sql: str) -> list[list[object]]:
    """Ask a snapshot from a process that knows nothing of ours."""
    done = subprocess.run(
        [sys.executable, "-c", READER, str(path), sql], capture_output=True, text=True, check=True
    )
    rows: list[list[object]] = json.loads(done.stdout)
    return rows


@contextlib.contextmanager
def process(address: BusAddress, state: Path, module: str) -> Iterator[subprocess.Popen[bytes]]:
    file = state / "launch.json"
    launch(address, state).write(file)
    started = subprocess.Popen([sys.executable, "-m", module, "--launch", str(file)])
    try:
        yield started
    finally:
        started.kill()
        started.wait(30)


@contextlib.asynccontextmanager
async def service(bus: Bus, address: BusAddress, state: Path) -> AsyncIterator[MeteringService]:
    metering = MeteringService(context(bus, address, state))
    await metering.start()
    try:
        yield metering
    finally:
        await metering.drain()


async def test_a_snapshot_holds_every_event_stored_before_the_call(
    bus: Bus, bus_address: BusAddress, tmp_path: Path
) -> None:
    await make_stream(bus)
    await publish(bus, receipt(1))  # stored while metering is down
    async with service(bus, bus_address, tmp_path) as metering:
        for number in range(2, 12):
            await publish(bus, receipt(number))
            await publish(bus, attempt(number))
            reply = await snapshot(bus)
            assert reply.rows == 2 * number - 1
            assert reply.path == str(tmp_path / "metering" / "snapshot.duckdb")
        assert query(reply.path, "SELECT count(*), sum(attempts) FROM requests") == [[11, 10]]
        snapshots = metering.counters()["snapshots"]
        assert await snapshot(bus) == reply
        assert metering.counters()["snapshots"] == snapshots, "nothing new, nothing copied"
        assert metering.counters()["rows"] == 21
        assert metering.counters()["lag"] == 0
        assert metering.detail()["snapshot"] == reply.path


async def test_a_changed_bound_of_its_stream_is_taken_over_live(
    bus: Bus, bus_address: BusAddress, tmp_path: Path
) -> None:
    await make_stream(bus)
    await publish(bus, receipt(1))
    larger = TOPOLOGY.model_copy(
        update={"bus": TOPOLOGY.bus.model_copy(update={"store_bytes": 1 << 25})}
    )
    async with service(bus, bus_address, tmp_path) as metering:
        await metering.reconfigure(larger, 2)
        assert (await bus.js.stream_info(subjects.USAGE_STREAM)).config.max_bytes == 1 << 25
        assert (await snapshot(bus)).rows == 1


async def test_the_file_follows_without_being_asked(
    bus: Bus, bus_address: BusAddress, tmp_path: Path
) -> None:
    await make_stream(bus)
    path = tmp_path / "metering" / "snapshot.duckdb"
    async with service(bus, bus_address, tmp_path):
        assert query(path, "SELECT count(*) FROM receipts") == [[0]]
        await publish(bus, receipt(1))
        async with asyncio.timeout(60):
            while await asyncio.to_thread(query, path, "SELECT count(*) FROM receipts") != [[1]]:
                await asyncio.sleep(0.1)


async def test_drain_stores_what_is_pending_and_publishes_it(
    bus: Bus, bus_address: BusAddress, tmp_path: Path
) -> None:
    await make_stream(bus)
    async with service(bus, bus_address, tmp_path):
        await asyncio.gather(*(publish(bus, receipt(number)) for number in range(500)))
    path = tmp_path / "metering" / "snapshot.duckdb"
    assert query(path, "SELECT count(*) FROM receipts") == [[500]]
    assert (await bus.js.stream_info(subjects.USAGE_STREAM)).state.messages == 0


async def test_a_malformed_message_is_kept_apart(
    bus: Bus, bus_address: BusAddress, tmp_path: Path
) -> None:
    await make_stream(bus)
    async with service(bus, bus_address, tmp_path) as metering:
        await bus.js.publish("hr.usage.receipt.small", b'{"kind":"receipt"}')
        await publish(bus, interval())
        reply = await snapshot(bus)
        found = query(reply.path, "SELECT raw, subject FROM rejected")
        assert found == [['{"kind":"receipt"}', "hr.usage.receipt.small"]]
        assert metering.counters()["rejected"] == 1
        assert reply.rows == 1


async def test_a_lost_consumer_is_made_again(
    bus: Bus, bus_address: BusAddress, tmp_path: Path
) -> None:
    await make_stream(bus)
    async with service(bus, bus_address, tmp_path):
        await bus.js.delete_consumer(subjects.USAGE_STREAM, "metering")
        await publish(bus, receipt(1))
        async with asyncio.timeout(60):
            while True:
                with contextlib.suppress(Exception):
                    if (await snapshot(bus)).rows == 1:
                        break
                await asyncio.sleep(0.1)


async def test_a_database_that_fails_is_opened_again(
    bus: Bus, bus_address: BusAddress, tmp_path: Path
) -> None:
    await make_stream(bus)
    async with service(bus, bus_address, tmp_path) as metering:
        await publish(bus, receipt(1))
        assert (await snapshot(bus)).rows == 1
        await metering._in_thread(metering._connection.close)
        await publish(bus, receipt(2))
        assert (await snapshot(bus)).rows == 2


async def test_the_process_is_ready_without_heavy_imports(
    bus: Bus, bus_address: BusAddress, tmp_path: Path
) -> None:
    await make_stream(bus)
    beats: asyncio.Queue[Beat] = asyncio.Queue()
    await bus.listen(
        subjects.beat("metering", "metering-0"),
        lambda msg: beats.put_nowait(Beat.model_validate_json(msg.data)),
    )
    await bus.client.flush()
    with process(bus_address, tmp_path, "stages.metering") as metering:
        beat = await asyncio.wait_for(beats.get(), 60)
        assert beat.ready
        maps = Path(f"/proc/{metering.pid}/maps").read_text()
        assert "polars" not in maps
        assert "torch" not in maps
        metering.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(metering.wait, 30) == 0


async def publish_all(bus: Bus, events: list[UsageEvent]) -> None:
    for start in range(0, len(events), 500):
        await asyncio.gather(*(publish(bus, event) for event in events[start : start + 500]))


@pytest.mark.slow
async def test_events_survive_kills_between_commit_and_ack_exactly_once(
    bus: Bus, bus_address: BusAddress, tmp_path: Path
) -> None:
    await make_stream(bus)
    events = list(traffic(seed=5, requests=7000))[:20_000]
    assert len(events) == 20_000
    dice = random.Random(1)
    twice = dice.sample(events, 2000)
    sent = events + twice
    dice.shuffle(sent)
    await publish_all(bus, sent)

    for _ in range(3):
        with process(bus_address, tmp_path, "tests.metering.crashing") as crashing:
            assert await asyncio.to_thread(crashing.wait, 60) == -signal.SIGKILL
    with process(bus_address, tmp_path, "stages.metering") as metering:
        async with asyncio.timeout(90):
            while (await bus.js.stream_info(subjects.USAGE_STREAM)).state.messages:
                await asyncio.sleep(0.1)
        metering.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(metering.wait, 60) == 0

    with duckdb.connect(str(tmp_path / "metering" / "snapshot.duckdb"), read_only=True) as reader:
        for kind, table, total in (
            ("attempt", "attempts", "accelerator_s"),
            ("receipt", "receipts", "completion_tokens"),
            ("interval", "intervals", "busy_ms"),
        ):
            expected = [event for event in events if event.kind == kind]
            row = reader.execute(f"SELECT count(*), sum({total}) FROM {table}").fetchone()
            assert row is not None
            assert row[0] == len(expected)
            assert row[1] == pytest.approx(sum(getattr(event, total) for event in expected))
        assert reader.execute("SELECT count(*) FROM rejected").fetchone() == (0,)
