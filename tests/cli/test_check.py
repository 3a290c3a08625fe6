"""`headrace check`: exit codes, JSON, and what this machine lacks."""

import json
import socket
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from contracts.topology import Topology
from stages.cli import app
from stages.control.machine import check_machine
from stages.control.process import Identity
from stages.control.state import RunState
from stages.runtime.topology_file import load_topology
from tests.support.topologies import write_topology


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A right topology whose model is a folder."""
    (tmp_path / "model").mkdir()
    return write_topology(tmp_path, source=str(tmp_path / "model"))


def check(file: Path, *options: str) -> Result:
    """Run the command."""
    return CliRunner().invoke(app, ["check", str(file), *options])


def loaded(file: Path) -> Topology:
    """The topology of a right file."""
    topology = load_topology(file).topology
    assert topology is not None
    return topology


def test_a_right_file_exits_0(file: Path) -> None:
    done = check(file)
    assert done.exit_code == 0, done.output
    assert "is right: 1 pool, 1 route" in done.output


def test_mistakes_exit_1_and_are_counted(file: Path) -> None:
    file.write_text(file.read_text().replace('"kv_tokens": 4096', '"kv_tokens": "4k", "slot": 1'))
    done = check(file)
    assert done.exit_code == 1
    assert "write 4096" in done.output
    assert "did you mean 'slots'?" in done.output
    assert f"2 mistakes in {file}" in done.output


def test_json_has_line_key_and_advice(file: Path) -> None:
    file.write_text(file.read_text().replace('"kv_tokens": 4096', '"kv_tokens": "4k"'))
    report = json.loads(check(file, "--json").stdout)
    assert report["ok"] is False
    (finding,) = report["findings"]
    assert finding["key"] == "pools.small.kv_tokens"
    assert finding["write"] == "4096"
    assert finding["level"] == "error"
    assert file.read_text().splitlines()[finding["line"] - 1].strip().startswith('"kv_tokens"')


def test_a_port_in_use_is_named_with_its_line(file: Path) -> None:
    topology = loaded(file)
    host, _, port = topology.stages.egress.grpc.rpartition(":")
    http = topology.stages.egress.http.rpartition(":")[2]
    with (
        socket.create_server(("127.0.0.1", topology.bus.port)),
        socket.create_server((host, int(port))),
        socket.create_server((host, int(http))),
    ):
        done = check(file)
    assert done.exit_code == 1
    assert f"bus.port: port {topology.bus.port} on 127.0.0.1 is in use" in done.output
    assert f"stages.egress.grpc: port {port} on 127.0.0.1 is in use" in done.output
    assert f"stages.egress.http: port {http} on 127.0.0.1 is in use" in done.output


def test_ports_of_our_own_running_pipeline_are_not_in_the_way(file: Path, tmp_path: Path) -> None:
    topology = loaded(file)
    ours = RunState(
        control=Identity(pid=1, start_ticks=1, boot_id="x"),
        topology_file=str(file),
        config_hash="",
        bus_url="",
        bus_port=topology.bus.port,
        grpc=topology.stages.egress.grpc,
        started_ms=0,
    )
    report = load_topology(file)
    with socket.create_server(("127.0.0.1", topology.bus.port)):
        check_machine(report, tmp_path, ours)
    assert report.errors == []


def test_a_missing_model_names_the_command_that_fetches_it(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    text = file.read_text().replace(str(tmp_path / "model"), "hf:someone/something")
    file.write_text(text)
    done = check(file)
    assert done.exit_code == 1
    assert "models.smollm.source" in done.output
    assert "headrace models pull hf:someone/something" in done.output
    assert check(file, "--file-only").exit_code == 0


def test_more_threads_than_cores_is_a_warning(file: Path) -> None:
    file.write_text(file.read_text().replace('"threads": 1', '"threads": 256'))
    done = check(file)
    assert done.exit_code == 0
    assert "warning: pools.small.threads" in done.output


@pytest.mark.parametrize(
    ("free", "advice"), [(100 << 20, "write 52428800 or"), (1 << 20, "free 1")]
)
def test_a_disk_too_small_for_both_streams_is_a_mistake_with_numbers(
    file: Path, monkeypatch: pytest.MonkeyPatch, free: int, advice: str
) -> None:
    usage = type("Usage", (), {"free": free})
    monkeypatch.setattr("stages.control.machine.shutil.disk_usage", lambda _: usage)
    done = check(file, "--state", str(file.parent / "state"))
    assert done.exit_code == 1
    assert f"2 x {1 << 26} bytes, but there is room for {free}" in done.output
    assert advice in done.output


def test_what_an_earlier_run_stored_counts_as_room(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = file.parent / "state" / "nats"
    store.mkdir(parents=True)
    (store / "block").write_bytes(bytes(1 << 20))
    usage = type("Usage", (), {"free": (1 << 27) - (1 << 19)})
    monkeypatch.setattr("stages.control.machine.shutil.disk_usage", lambda _: usage)
    assert check(file, "--state", str(file.parent / "state")).exit_code == 0


def test_a_missing_file_exits_1(tmp_path: Path) -> None:
    done = check(tmp_path / "none.yaml")
    assert done.exit_code == 1
    assert "no such file" in done.output
