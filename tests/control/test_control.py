"""Control with a real nats-server and small real stages."""

import asyncio
import os
import re
import signal
import stat
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from contracts import subjects
from contracts.lifecycle import Actuals, Generation
from contracts.status import StatusCall, StatusReport
from contracts.topology import Topology
from contracts.usage import USAGE_EVENT, IntervalEvent
from stages.control.fleet import StartError
from stages.control.order import ProcessSpec
from stages.control.process import identify
from stages.control.progress import Progress
from stages.control.service import Control
from stages.control.state import StateFolder
from stages.runtime.bus import Bus
from stages.runtime.live_topology import read_generation
from stages.runtime.topology_file import load_topology
from tests.support.dummy_control import dummies
from tests.support.nats import flushed
from tests.support.topologies import write_topology
from tests.support.waiting import LIMIT_S, eventually


def make_control(folder: Path, **env: str) -> Control:
    """Control over dummies; `env` names a stage and the mode of its dummy."""
    file = folder / "topology.yaml"
    if not file.exists():
        write_topology(folder)
    topology = load_topology(file).topology
    assert topology is not None
    state = StateFolder(folder / "state")
    state.make()

    def planner(topology: Topology, actuals: Actuals) -> list[ProcessSpec]:
        specs = dummies(topology, actuals)
        return [replace(spec, env={"DUMMY_STAGE": env.get(spec.stage, "")}) for spec in specs]

    begin = Generation(
        generation=0, topology=topology, text=file.read_text(), reason="start", applied_ms=0
    )
    return Control(begin, file, state, Progress(), planner)


@pytest.fixture
async def control(tmp_path: Path) -> AsyncIterator[Control]:
    """A running pipeline of dummies."""
    made = make_control(tmp_path)
    await made.start()
    yield made
    await made.stop()


@pytest.fixture
async def inside(control: Control, tmp_path: Path) -> AsyncIterator[Bus]:
    """The bus as the stages see it."""
    address = StateFolder(tmp_path / "state").read_bus()
    assert address is not None
    bus = await Bus.connect(address, "test")
    yield bus
    await bus.close()


async def ask(bus: Bus) -> StatusReport:
    """`hr.control.status`."""
    return await bus.request(subjects.STATUS, StatusCall(), StatusReport, LIMIT_S)


async def test_the_status_shows_every_process_ready(inside: Bus) -> None:
    report = await ask(inside)
    assert report.problems == []
    assert report.healthy
    assert [one.stage for one in report.stages] == [
        *("ingress", "routing", "queueing", "queueing", "egress", "metering")
    ]
    assert [one.instance for one in report.executors] == ["small-0"]
    for one in (*report.stages, *report.executors):
        assert one.phase == "ready"
        assert one.pid is not None
        assert identify(one.pid) is not None
        assert one.startup_ms is not None
        assert one.incarnation is not None
    assert report.conservation is not None
    assert report.conservation.balanced
    assert report.ready_s is not None


async def test_stages_get_the_topology_and_the_streams_are_there(inside: Bus) -> None:
    found = await read_generation(inside)
    assert found.topology.pools["small"].kv_tokens == 4096
    assert found.generation == (await ask(inside)).generation
    await inside.js.stream_info(subjects.QUEUE_STREAM)
    await inside.js.stream_info(subjects.USAGE_STREAM)


async def test_children_have_sessions_of_their_own_and_no_secrets_in_sight(
    inside: Bus, tmp_path: Path
) -> None:
    address = StateFolder(tmp_path / "state").read_bus()
    assert address is not None
    report = await ask(inside)
    for one in (report.bus, *report.stages, *report.executors):
        assert one.pid is not None
        assert os.getsid(one.pid) == one.pid
        for name in ("cmdline", "environ"):
            assert address.password.encode() not in Path(f"/proc/{one.pid}/{name}").read_bytes()
    assert address.password not in report.model_dump_json()


async def test_what_holds_secrets_is_readable_by_its_owner_only(
    control: Control, tmp_path: Path
) -> None:
    state = tmp_path / "state"
    secret = [state / "state.json", state / "bus.json", state / "nats" / "nats.conf"]
    secret += (state / "run").glob("*.json")
    assert len(secret) == 3 + 7
    for path in secret:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    assert stat.S_IMODE(state.stat().st_mode) == 0o700


async def test_a_killed_stage_comes_back_and_the_status_says_why(
    control: Control, inside: Bus
) -> None:
    before = next(one for one in (await ask(inside)).stages if one.stage == "routing")
    assert before.pid is not None
    os.kill(before.pid, signal.SIGKILL)
    async with asyncio.timeout(LIMIT_S):
        while True:
            after = next(one for one in (await ask(inside)).stages if one.stage == "routing")
            if after.phase == "ready" and after.pid != before.pid:
                break
            await asyncio.sleep(0.05)
    assert after.restarts == 1
    assert after.incarnation != before.incarnation
    assert after.last_error is not None
    assert "signal 9" in after.last_error


async def test_a_killed_executor_s_time_is_booked_to_its_exit(
    control: Control, inside: Bus
) -> None:
    events: list[IntervalEvent] = []

    def keep(data: bytes) -> None:
        event = USAGE_EVENT.validate_json(data)
        assert isinstance(event, IntervalEvent)
        events.append(event)

    await inside.listen("hr.usage.interval.*", lambda msg: keep(msg.data))
    await flushed(inside)
    (executor,) = (await ask(inside)).executors
    assert executor.pid is not None
    await asyncio.sleep(0.3)
    os.kill(executor.pid, signal.SIGKILL)
    killed_ms = time.time() * 1000
    await eventually(lambda: executor.incarnation in {one.executor for one in events})
    seen_ms = time.time() * 1000
    (lost,) = [one for one in events if one.executor == executor.incarnation]
    stored = await inside.js.get_msg(subjects.USAGE_STREAM, seq=1)
    assert stored.data is not None
    first = USAGE_EVENT.validate_json(stored.data)
    assert isinstance(first, IntervalEvent)
    assert lost.start_ms == first.end_ms, "the lost part begins where the last report ended"
    assert lost.lost_ms == pytest.approx(lost.end_ms - lost.start_ms)
    assert killed_ms - 1 <= lost.end_ms <= seen_ms
    assert lost.drain_ms == 0


async def test_a_stage_that_hangs_is_killed_and_comes_back(control: Control, inside: Bus) -> None:
    before = next(one for one in control.status().stages if one.stage == "routing")
    assert before.pid is not None
    os.kill(before.pid, signal.SIGSTOP)  # alive, and silent

    def back() -> bool:
        now = next(one for one in control.status().stages if one.stage == "routing")
        return now.restarts == 1 and now.phase == "ready"

    await eventually(back, 90)  # 15 s of silence come first
    after = next(one for one in control.status().stages if one.stage == "routing")
    assert after.last_error is not None
    assert "no beat for 15 s" in after.last_error
    assert [one.instance for one in control.status().stages if one.restarts] == ["routing-0"]


async def test_nats_server_killed_comes_back_and_the_pipeline_is_healthy_again(
    control: Control,
) -> None:
    before = control.status().bus
    assert before.pid is not None
    os.kill(before.pid, signal.SIGKILL)
    await eventually(
        lambda: control.status().bus.restarts == 1 and control.status().healthy, 2 * LIMIT_S
    )


async def test_changed_bounds_of_the_streams_are_taken_over_whatever_the_disk(
    tmp_path: Path,
) -> None:
    file = write_topology(tmp_path)
    for store_bytes in (1 << 24, 1 << 45, 1 << 24):  # 2 x 32 TiB are reserved in between
        text = re.sub(r'"store_bytes": \d+', f'"store_bytes": {store_bytes}', file.read_text())
        file.write_text(text)
        control = make_control(tmp_path)
        await control.start()
        address = StateFolder(tmp_path / "state").read_bus()
        assert address is not None
        bus = await Bus.connect(address, "test")
        for name in (subjects.QUEUE_STREAM, subjects.USAGE_STREAM):
            assert (await bus.js.stream_info(name)).config.max_bytes == store_bytes
        await bus.close()
        await control.stop()


async def test_a_stop_ends_every_process_and_clears_the_state(tmp_path: Path) -> None:
    control = make_control(tmp_path)
    await control.start()
    report = control.status()
    pids = [one.pid for one in (report.bus, *report.stages, *report.executors)]
    await control.stop()
    assert [pid for pid in pids if pid is not None and identify(pid) is not None] == []
    assert StateFolder(tmp_path / "state").read() is None
    assert StateFolder(tmp_path / "state").read_bus() is None


async def test_a_stage_that_cannot_start_fails_the_start_with_its_last_words(
    tmp_path: Path,
) -> None:
    control = make_control(tmp_path, routing="crash")
    with pytest.raises(StartError, match=r"(?s)routing-0 does not start: .*told to crash"):
        await control.start()
    await control.stop()


async def test_the_generation_grows_only_when_the_topology_changed(tmp_path: Path) -> None:
    generations = []
    for kv_tokens in (4096, 4096, 8192):
        file = write_topology(tmp_path) if not generations else tmp_path / "topology.yaml"
        file.write_text(re.sub(r'"kv_tokens": \d+', f'"kv_tokens": {kv_tokens}', file.read_text()))
        control = make_control(tmp_path)
        await control.start()
        generations.append(control.status().generation)
        await control.stop()
    assert generations[0] == generations[1] < generations[2]
