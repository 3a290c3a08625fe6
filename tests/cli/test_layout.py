"""What the commands print: layouts for 80 columns, hints that can be typed as they stand."""

import io
import json
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from contracts.status import Addresses, ControlStatus, ProcessStatus, StatusReport
from stages.cli import app
from stages.cli.common import plural
from stages.cli.status import identities, render

FINGERPRINT = "b179c9523d0e6a0f:fp16:cpu"


def executor(name: str, fraction: str = "1") -> ProcessStatus:
    return ProcessStatus(
        stage="gpu_worker",
        instance=name,
        pool="small",
        pid=123456,
        phase="ready",
        generation=12,
        uptime_s=150,
        counters={"num_requests_running": 16},
        detail={"device": "cpu", "fraction": fraction, "zone": "default"}
        | {"fingerprint": FINGERPRINT},
    )


def report(*executors: ProcessStatus) -> StatusReport:
    return StatusReport(
        healthy=True,
        problems=[],
        generation=12,
        topology_file="/a/folder/with/a/rather/long/name/that/no/headline/has/room/for/topology.yaml",
        config_hash="",
        conservation=None,
        pid=1,
        control=ControlStatus(pid=1),
        started_ms=0,
        sent_ms=150_000,
        ready_s=1,
        addresses=Addresses(nats="nats://127.0.0.1:4222", grpc="127.0.0.1:7070", http="-"),
        bus=ProcessStatus(stage="nats", instance="nats-server", phase="ready"),
        stages=[],
        executors=list(executors),
    )


def test_the_status_of_a_pipeline_fits_into_80_columns() -> None:
    out = io.StringIO()
    Console(file=out, width=80).print(render(report(executor("small-0"), executor("small-1"))))
    lines = [line.rstrip() for line in out.getvalue().splitlines()]
    assert lines[0] == "healthy   generation 12   up 2 min 30 s"
    assert lines[3].startswith("small-0")
    assert lines[3].endswith("16 running"), "one line a process"
    assert lines[5] == ("small-0, small-1: cpu, fraction 1, zone default, fingerprint b179c9523d0e")
    assert max(map(len, lines)) <= 80


def test_executors_that_are_not_alike_have_lines_of_their_own() -> None:
    found = identities([executor("small-0"), executor("other-0", "0.5"), executor("small-1")])
    assert [line.partition(":")[0] for line in found] == ["small-0, small-1", "other-0"]


@pytest.mark.parametrize("words", [["plan"], ["apply"], ["history"], ["rollback"], ["status"]])
def test_what_to_type_names_the_state_folder(words: list[str], tmp_path: Path) -> None:
    done = CliRunner().invoke(app, [*words, "--state", str(tmp_path), "--json"])
    assert done.exit_code == 3
    assert f"`headrace up --state {tmp_path}`" in done.stderr
    assert f"headrace up --state {tmp_path}" in json.loads(done.stdout)["error"]


def test_with_json_an_error_is_json_too(tmp_path: Path) -> None:
    for words, code in (
        (["sql", "SELECT 1", "--state", str(tmp_path)], 3),
        (["costs", "--state", str(tmp_path)], 3),
        (["costs", "--since", "1x", "--state", str(tmp_path)], 2),
        (["models", "show", "/no/such/model"], 1),
    ):
        done = CliRunner().invoke(app, [*words, "--json"])
        assert done.exit_code == code, done.output
        assert json.loads(done.stdout)["error"] in done.stderr


def test_numbers_and_their_nouns() -> None:
    said = [plural(1, "pool"), plural(2, "pool"), plural(1, "process"), plural(0, "process")]
    assert said == ["1 pool", "2 pools", "1 process", "0 processes"]
