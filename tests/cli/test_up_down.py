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


def test_after_control_was_killed_status_says_so_and_up_starts_afresh(
    headrace: Headrace, file: Path, tmp_path: Path
) -> None:
    assert headrace("up", "--topology", str(file), "--detach").returncode == 0
    folder = StateFolder(tmp_path / "state")
    before = folder.read()
    assert before is not None
    os.kill(before.control.pid, signal.SIGKILL)
    until(lambda: not before.control.alive)
    status = headrace("status")
    assert status.returncode == 1
    assert "7 processes are left" in status.stderr
    up = headrace("up", "--topology", str(file), "--detach")
    assert up.returncode == 0, up.stderr
    assert before.leftovers() == []
    after = folder.running()
    assert after is not None
    assert identify(after.control.pid) is not None


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


def test_down_ends_what_a_killed_control_left(
    headrace: Headrace, file: Path, tmp_path: Path
) -> None:
    assert headrace("up", "--topology", str(file), "--detach").returncode == 0
    before = StateFolder(tmp_path / "state").read()
    assert before is not None
    os.kill(before.control.pid, signal.SIGKILL)
    until(lambda: not before.control.alive)
    down = headrace("down", "--json")
    assert down.returncode == 0
    assert json.loads(down.stdout) == {"was_running": False, "clean": True, "left_over": 7}
    assert before.leftovers() == []
