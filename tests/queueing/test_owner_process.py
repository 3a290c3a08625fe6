"""Two replicas as processes: one is killed, or stands still and comes back too late."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from contracts import subjects
from contracts.client import FinishReason
from contracts.internal import Beat, OwnerRecord, Work
from contracts.lifecycle import Generation
from stages.runtime.bus import Bus
from stages.runtime.clock import now_ms
from stages.runtime.launch import BusAddress, Launch
from tests.queueing.support import ScriptedEgress, ScriptedExecutor, make_work, until
from tests.support.nats import flushed
from tests.support.stages import topology

RUNNING, WAITING = 4, 8


class Replicas:
    """Processes, and what they say of themselves."""

    def __init__(self, address: BusAddress, bus: Bus, folder: Path) -> None:
        self._address, self._bus, self._folder = address, bus, folder
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.beats: dict[str, Beat] = {}

    async def start(self) -> None:
        bucket = await self._bus.js.create_key_value(bucket=subjects.TOPOLOGY_BUCKET)
        first = Generation(
            generation=1, topology=topology(), text="", reason="start", applied_ms=now_ms()
        )
        await bucket.put(subjects.TOPOLOGY_SPEC, first.model_dump_json().encode())
        await self._bus.listen(subjects.beat("queueing", "*"), self._on_beat)
        for name in ("queueing-0", "queueing-1"):
            launch = Launch(
                stage="queueing",
                instance=name,
                incarnation=f"{name}-x",
                bus=self._address,
                state=self._folder,
                spawned_ms=now_ms(),
            )
            path = self._folder / f"{name}.json"
            launch.write(path)
            with (self._folder / f"{name}.log").open("wb") as log:
                self.processes[f"{name}-x"] = subprocess.Popen(
                    [sys.executable, "-m", "stages.queueing", "--launch", path], stderr=log
                )
        await until(lambda: len(self.beats) == 2, 60)

    def _on_beat(self, msg: object) -> None:
        beat = Beat.model_validate_json(msg.data)  # type: ignore[attr-defined]
        if beat.ready:
            self.beats[beat.incarnation] = beat

    async def owner(self) -> OwnerRecord:
        bucket = await self._bus.js.key_value(subjects.OWNER_BUCKET)
        return OwnerRecord.model_validate_json((await bucket.get("p")).value or b"")

    def figures(self, incarnation: str) -> dict[str, float]:
        return self.beats[incarnation].counters

    def stop(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait(10)


@pytest.fixture
async def replicas(bus_address: BusAddress, bus: Bus, tmp_path: Path) -> AsyncIterator[Replicas]:
    made = Replicas(bus_address, bus, tmp_path)
    try:
        await made.start()
        yield made
    finally:
        made.stop()


async def admitted(bus: Bus, work: Work) -> None:
    """As ingress does: again until somebody answers."""
    async with asyncio.timeout(60):
        while True:
            try:
                await bus.request_bytes(subjects.admit("p"), work, 1.0)
            except Exception:  # noqa: BLE001 - nobody serves it just now
                await asyncio.sleep(0.1)
            else:
                return


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
async def test_the_other_replica_takes_over_what_runs_and_waits(
    bus: Bus, replicas: Replicas, how: signal.Signals
) -> None:
    executor, egress = ScriptedExecutor(bus, slots=RUNNING), ScriptedEgress(bus)
    await executor.start()
    await egress.start()
    bus.spawn(egress.keep_beating())
    works = [make_work(deadline_ms=2**52) for _ in range(RUNNING + WAITING)]
    egress.knows(*works)
    for work in works:
        await admitted(bus, work)
    await until(lambda: len(executor.running) == RUNNING, 60)
    before = dict(executor.running)
    first = await replicas.owner()
    other = next(name for name in replicas.processes if name != first.owner)
    os.kill(replicas.processes[first.owner].pid, how)
    await until(lambda: replicas.figures(other)["running"] == RUNNING, 60)
    assert replicas.figures(other)["queued"] == WAITING
    assert (await replicas.owner()).epoch > first.epoch
    assert executor.running == before

    # Receipts that the stopped one hears as well, and acts on when it goes on.
    by_id = {work.request_id: work for work in works}
    ended = {name: by_id[name] for name in list(before)[:2]}
    for work in ended.values():
        await egress.end(work, FinishReason.STOP)
        await executor.finish(work.request_id)
    if how is signal.SIGSTOP:
        os.kill(replicas.processes[first.owner].pid, signal.SIGCONT)
        del replicas.beats[first.owner]
        await until(lambda: first.owner in replicas.beats, 60)  # it is a standby now
        await until(lambda: replicas.figures(first.owner)["accepted"] == 0, 60)
    await until(lambda: len(executor.running) == RUNNING, 60)
    await until(lambda: replicas.figures(other)["finished"] == 2, 60)
    async with asyncio.timeout(60):
        while await stored(bus) > len(works) - 2:
            await asyncio.sleep(0.05)
    assert await stored(bus) == len(works) - 2  # the late acks removed nothing else
    leases = [executor.leases.get_nowait() for _ in range(executor.leases.qsize())]
    names = [lease.work.request_id for lease in leases]
    assert len(names) == len(set(names)) == RUNNING + 2  # nothing that ran was leased again
    await flushed(bus)
    assert executor.refused.empty()


async def stored(bus: Bus) -> int:
    return int((await bus.js.stream_info(subjects.QUEUE_STREAM)).state.messages)
