"""Watchdog and control as processes, over dummy stages: each is killed, nothing else is disturbed."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from contracts import subjects
from contracts.usage import USAGE_EVENT, IntervalEvent
from stages.control.adoption import find
from stages.control.ending import end_pipeline
from stages.control.guard import watchdog_command
from stages.control.natsd import NatsServer
from stages.control.process import Identity
from stages.control.state import ProcessRecord, Role, RunState, StateFolder
from stages.runtime.bus import Bus
from stages.runtime.topology_file import load_topology
from tests.support.topologies import write_topology
from tests.support.waiting import until

WAIT_S = 60.0


class Running:
    """A pipeline under a watchdog."""

    def __init__(self, folder: Path) -> None:
        self.file = write_topology(folder)
        self.folder = StateFolder(folder / "state")
        self.folder.make()
        (self.folder.root / "logs").mkdir(exist_ok=True)
        command = watchdog_command("tests.support.dummy_control", self.file, self.folder.root)
        self.process = subprocess.Popen(command, start_new_session=True, stdout=subprocess.DEVNULL)
        until(lambda: "up" in self.events(), WAIT_S)

    def told(self) -> list[dict[str, Any]]:
        """All that was told so far."""
        if not self.folder.progress.exists():
            return []
        return [json.loads(line) for line in self.folder.progress.read_text().splitlines()]

    def events(self) -> list[str]:
        """The names of what was told."""
        return [one["event"] for one in self.told()]

    def state(self) -> RunState:
        """As written last."""
        state = self.folder.read()
        assert state is not None
        return state

    def kill(self, role: Role) -> Identity:
        """SIGKILL; returns who it was."""
        holder = self.folder.holder(role)
        assert holder is not None
        holder.send(signal.SIGKILL)
        self.process.poll()
        return holder

    def replaced(self, role: Role, before: Identity) -> None:
        """Wait until another one has the role."""
        self.process.poll()
        until(lambda: self.folder.holder(role) not in (None, before), WAIT_S)

    def up_again(self, times: int) -> None:
        """Wait until control has said so often that it is up."""
        until(lambda: self.events().count("up") == times, WAIT_S)


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    """Ended whatever happens."""
    made = Running(tmp_path)
    yield made
    end_pipeline(made.folder)
    made.process.wait(WAIT_S)


def pids(state: RunState) -> dict[str, int]:
    """Of every process."""
    return {one.instance: one.identity.pid for one in state.processes}


def record(state: RunState, instance: str) -> ProcessRecord:
    """One of them."""
    return next(one for one in state.processes if one.instance == instance)


def test_each_is_killed_and_started_by_the_other_and_the_children_keep_their_pids(
    running: Running,
) -> None:
    before = pids(running.state())
    control = running.kill("control")
    running.replaced("control", control)
    running.up_again(2)
    assert pids(running.state()) == before
    watchdog = running.kill("watchdog")
    running.replaced("watchdog", watchdog)
    assert running.state().watchdogs <= 1
    control = running.kill("control")  # the new watchdog had not started that one
    running.replaced("control", control)
    running.up_again(3)
    assert pids(running.state()) == before
    note = json.loads(running.folder.watchdog.read_text())
    assert note["restarts"] == 2
    routing = record(running.state(), "routing-0")  # the end of an adopted child is noticed
    told = running.events()
    routing.identity.send(signal.SIGKILL)
    until(lambda: record_pid(running, "routing-0") not in (None, routing.identity.pid), WAIT_S)
    until(lambda: "ready" in running.events()[len(told) :], WAIT_S)
    others = {name: pid for name, pid in pids(running.state()).items() if name != "routing-0"}
    assert others == {name: pid for name, pid in before.items() if name != "routing-0"}


def record_pid(running: Running, instance: str) -> int | None:
    """Its pid as written down now."""
    return pids(running.state()).get(instance)


def test_a_child_that_was_not_written_down_is_found_and_not_started_twice(
    running: Running,
) -> None:
    before = pids(running.state())
    watchdog = running.folder.holder("watchdog")
    assert watchdog is not None
    watchdog.send(signal.SIGSTOP)
    control = running.kill("control")
    until(lambda: not control.alive, WAIT_S)
    state = running.state()  # as if control had been killed between a spawn and its record
    kept = [one for one in state.processes if one.instance != "routing-0"]
    running.folder.write(state.model_copy(update={"processes": kept}))
    watchdog.send(signal.SIGCONT)
    running.up_again(2)
    assert pids(running.state()) == before
    assert sorted(one.instance for one in find(running.folder).living) == sorted(before)


async def test_the_time_of_an_executor_that_died_while_control_was_away_is_closed(
    running: Running,
) -> None:
    watchdog = running.folder.holder("watchdog")
    assert watchdog is not None
    watchdog.send(signal.SIGSTOP)
    control = running.kill("control")
    until(lambda: not control.alive, WAIT_S)
    executor = record(running.state(), "small-0")
    executor.identity.send(signal.SIGKILL)
    until(lambda: not executor.identity.alive, WAIT_S)
    watchdog.send(signal.SIGCONT)
    running.up_again(2)
    until(lambda: "small-0" in pids(running.state()), WAIT_S)
    until(lambda: executor not in running.state().processes, WAIT_S)
    spans = await intervals(running, executor.incarnation)
    assert len(spans) == 2
    assert spans[0].start_ms == pytest.approx(executor.spawned_ms)
    assert spans[1].start_ms == spans[0].end_ms, "it goes on where the last report ended"
    assert spans[1].lost_ms == pytest.approx(spans[1].end_ms - spans[1].start_ms)
    assert spans[1].end_ms <= time.time() * 1000


async def intervals(running: Running, incarnation: str) -> list[IntervalEvent]:
    """What is booked for an executor, in order of time (control's own user may look)."""
    topology = load_topology(running.file).topology
    assert topology is not None
    bus = await Bus.connect(NatsServer(running.folder, topology).address, "test")
    found = []
    state = (await bus.js.stream_info(subjects.USAGE_STREAM)).state
    for number in range(state.first_seq, state.last_seq + 1):
        message = await bus.js.get_msg(subjects.USAGE_STREAM, seq=number)
        event = USAGE_EVENT.validate_json(message.data or b"")
        if isinstance(event, IntervalEvent) and event.executor == incarnation:
            found.append(event)
    await bus.close()
    return sorted(found, key=lambda one: one.start_ms)


def test_down_while_control_is_dead_and_waits_for_its_next_start(running: Running) -> None:
    for times in range(1, 4):  # the pause before the third start is 0.8 s
        control = running.kill("control")
        until(lambda: running.events().count("control") == times, WAIT_S)  # noqa: B023
        if times < 3:
            running.replaced("control", control)
            running.up_again(times + 1)
    ended = end_pipeline(running.folder)
    assert ended.clean
    running.process.wait(WAIT_S)
    assert running.folder.looked_after() is None
    assert find(running.folder).living == []
    assert running.folder.read() is None


def test_there_is_never_a_second_watchdog_or_control(running: Running) -> None:
    command = watchdog_command("tests.support.dummy_control", running.file, running.folder.root)
    before = running.folder.holder("watchdog"), running.folder.holder("control")
    assert subprocess.run([*command, "--adopt"], timeout=WAIT_S, check=False).returncode == 2
    again = [sys.executable, "-m", "tests.support.dummy_control", "--topology", str(running.file)]
    again += ["--state", str(running.folder.root)]
    assert subprocess.run(again, timeout=WAIT_S, check=False).returncode == 2
    assert (running.folder.holder("watchdog"), running.folder.holder("control")) == before
