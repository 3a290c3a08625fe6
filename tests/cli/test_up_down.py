"""`headrace up`, `status` and `down` with a real nats-server and dummy stages."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from stages.cli import app
from stages.control.adoption import find
from stages.control.process import Identity, identify
from stages.control.state import ProcessRecord, RunState, StateFolder
from tests.support.topologies import write_topology
from tests.support.waiting import until

Headrace = Callable[..., subprocess.CompletedProcess[str]]


def command(*words: str) -> list[str]:
    """`headrace` with dummy stages."""
    return [sys.executable, "-m", "tests.support.dummy_headrace", *words]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A topology that this machine can run."""
    (tmp_path / "model").mkdir()
    return write_topology(tmp_path, source=str(tmp_path / "model"))


@pytest.fixture
def headrace(tmp_path: Path) -> Iterator[Headrace]:
    """Run a command on a state folder; whatever runs is stopped at the end."""

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        words = (*words, "--state", str(tmp_path / "state"))
        return subprocess.run(
            command(*words), capture_output=True, text=True, timeout=180, check=False
        )

    yield run
    run("down")


def test_a_detached_pipeline_from_start_to_end(
    headrace: Headrace, file: Path, tmp_path: Path
) -> None:
    up = headrace("up", "--topology", str(file), "--detach")
    assert up.returncode == 0, up.stderr
    assert "Ready in" in up.stdout
    assert "headrace ask" in up.stdout
    again = headrace("up", "--topology", str(file))
    assert again.returncode == 1
    assert "already running here" in again.stderr
    status = headrace("status", "--json")
    assert status.returncode == 0, status.stdout
    report = json.loads(status.stdout)
    assert report["healthy"] is True
    assert report["conservation"]["balanced"] is True
    assert "healthy" in headrace("status").stdout
    state = StateFolder(tmp_path / "state").read()
    assert state is not None
    down = headrace("down")
    assert down.returncode == 0, down.stderr
    assert "Stopped." in down.stdout
    assert state.leftovers() == []
    assert not state.control.alive


def test_what_does_not_run_is_said_with_an_exit_code(headrace: Headrace) -> None:
    status = headrace("status")
    assert status.returncode == 3
    assert "not running" in status.stderr
    down = headrace("down")
    assert down.returncode == 0
    assert "Not running." in down.stdout


def test_a_wrong_topology_is_refused_with_all_its_mistakes(
    headrace: Headrace, file: Path, tmp_path: Path
) -> None:
    text = file.read_text().replace('"kv_tokens": 4096', '"kv_tokens": "4k"')
    file.write_text(text.replace('"threads": 1', '"threads": 0'))
    up = headrace("up", "--topology", str(file), "--detach", "--json")
    assert up.returncode == 1
    assert "write 4096" in up.stderr
    assert "from 1 to 256" in up.stderr
    assert "pools.small.threads" in json.loads(up.stdout)["error"]
    assert not (tmp_path / "state").exists()


def test_a_stage_that_cannot_start_fails_up_and_leaves_nothing(
    headrace: Headrace, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DUMMY_STAGE", "crash")
    up = headrace("up", "--topology", str(file), "--detach")
    assert up.returncode == 1
    assert "does not start" in up.stderr
    assert "told to crash" in up.stderr
    assert StateFolder(tmp_path / "state").read() is None


def test_interrupting_the_foreground_stops_everything(file: Path, tmp_path: Path) -> None:
    words = ("up", "--topology", str(file), "--state", str(tmp_path / "state"), "--json")
    with subprocess.Popen(command(*words), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        events = []
        for line in process.stdout:
            events.append(json.loads(line))
            if events[-1]["event"] == "up":
                state = StateFolder(tmp_path / "state").read()
                process.send_signal(signal.SIGINT)
    assert process.returncode == 0
    assert events[-1]["event"] == "down"
    ended = [one["instance"] for one in events if one["event"] == "stopped"]
    assert ended[0] == "ingress-0"
    assert ended[-2:] == ["metering-0", "nats-server"]
    assert state is not None
    assert state.leftovers() == []


def killed_at_once(folder: StateFolder) -> RunState:
    """Kill watchdog and control, so that nobody starts the other again; returns what was left."""
    before = folder.read()
    assert before is not None
    for role in ("watchdog", "control"):
        holder = folder.holder(role)  # type: ignore[arg-type]
        assert holder is not None
        holder.send(signal.SIGSTOP)  # else control would start a watchdog meanwhile
    for role in ("watchdog", "control"):
        holder = folder.holder(role)  # type: ignore[arg-type]
        assert holder is not None
        holder.send(signal.SIGKILL)
    until(lambda: folder.looked_after() is None)
    return before


def test_what_control_and_watchdog_left_is_taken_over_by_up(
    headrace: Headrace, file: Path, tmp_path: Path
) -> None:
    assert headrace("up", "--topology", str(file), "--detach").returncode == 0
    folder = StateFolder(tmp_path / "state")
    before = killed_at_once(folder)
    status = headrace("status")
    assert status.returncode == 1
    assert "processes are left: `headrace up --state" in status.stderr
    up = headrace("up", "--topology", str(file), "--detach")
    assert up.returncode == 0, up.stderr
    assert "taken over: " in up.stdout
    after = folder.running()
    assert after is not None
    assert pids(after) == pids(before)
    file.write_text(file.read_text().replace('"kv_tokens": 4096', '"kv_tokens": 8192'))
    killed_at_once(folder)
    up = headrace("up", "--topology", str(file), "--detach")
    assert up.returncode == 0, up.stderr
    assert "ending what is left of another topology" in up.stdout
    assert before.leftovers() == []


def pids(state: RunState) -> dict[str, int]:
    """Of every process by name."""
    return {one.instance: one.identity.pid for one in state.processes}


def test_down_names_what_even_sigkill_does_not_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    me = identify(os.getpid())
    assert me is not None
    gone = Identity(pid=me.pid, start_ticks=0, boot_id="before")
    folder = StateFolder(tmp_path / "state")
    folder.make()
    folder.write(
        RunState(
            control=gone,
            processes=[ProcessRecord(stage="routing", instance="routing-0", identity=me)],
            topology_file="x",
            config_hash="",
            bus_url="",
            bus_port=1,
            grpc="",
            started_ms=0,
        )
    )

    async def in_vain(processes: list[Identity], _grace_s: float) -> list[Identity]:
        return processes

    monkeypatch.setattr("stages.control.leftovers.end_all", in_vain)
    done = CliRunner().invoke(app, ["down", "--state", str(folder.root)])
    assert done.exit_code == 1
    assert f"routing-0 (pid {me.pid}) did not end" in done.output
    assert folder.read() is not None, "a later down still finds it"


def test_down_ends_what_control_and_watchdog_left(
    headrace: Headrace, file: Path, tmp_path: Path
) -> None:
    assert headrace("up", "--topology", str(file), "--detach").returncode == 0
    before = killed_at_once(StateFolder(tmp_path / "state"))
    down = headrace("down", "--json")
    assert down.returncode == 0
    left = len(before.processes)
    assert json.loads(down.stdout) == {"was_running": False, "clean": True, "left_over": left}
    assert before.leftovers() == []


def test_a_second_down_waits_and_forces_nothing(
    headrace: Headrace, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DUMMY_STAGE", "slow")
    assert headrace("up", "--topology", str(file), "--detach").returncode == 0
    words = command("down", "--state", str(tmp_path / "state"))
    first = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    progress = StateFolder(tmp_path / "state").progress
    until(lambda: "stopping" in progress.read_text())
    second = headrace("down")
    said, _ = first.communicate(timeout=120)
    assert second.returncode == first.returncode == 0
    assert "Stopped." in said
    log = (tmp_path / "state" / "logs" / "ingress-0.log").read_text()
    assert "drained" in log, "it had the time it needs"


def test_down_right_after_up_was_typed(headrace: Headrace, file: Path, tmp_path: Path) -> None:
    words = ("up", "--topology", str(file), "--detach", "--state", str(tmp_path / "state"))
    folder = StateFolder(tmp_path / "state")
    with subprocess.Popen(command(*words), stdout=subprocess.DEVNULL) as process:
        until(lambda: (folder.holder("up") or folder.looked_after()) is not None)
        assert headrace("down").returncode == 0
        assert folder.looked_after() is None
        assert process.wait(120) == 1
    assert folder.read() is None
    assert find(folder).living == []


def test_a_killed_foreground_up_leaves_the_pipeline_running(
    headrace: Headrace, file: Path, tmp_path: Path
) -> None:
    words = ("up", "--topology", str(file), "--state", str(tmp_path / "state"), "--json")
    with subprocess.Popen(command(*words), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if json.loads(line)["event"] == "up":
                process.kill()
    assert headrace("status").returncode == 0
    assert headrace("down").returncode == 0
