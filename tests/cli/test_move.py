"""`headrace move` against a queue that is played by the test."""

import asyncio
import json
from pathlib import Path

import pytest
from nats.aio.msg import Msg
from typer.testing import CliRunner

from contracts import subjects
from contracts.errors import ErrorCode, HeadraceError
from contracts.internal import MoveCall, MoveReply
from stages.cli import app
from stages.runtime.bus import Bus
from stages.runtime.launch import BusAddress
from tests.support.nats import flushed


async def headrace_move(state: Path, *words: str) -> tuple[int, str, str]:
    """Exit code, stdout, stderr. In a thread: the command has an event loop of its own."""
    command = ["move", *words, "--state", str(state)]
    result = await asyncio.to_thread(CliRunner().invoke, app, command)
    return result.exit_code, result.stdout, result.stderr


@pytest.fixture
def state(tmp_path: Path, bus_address: BusAddress) -> Path:
    (tmp_path / "bus.json").write_text(bus_address.model_dump_json())
    return tmp_path


async def test_it_says_what_moved_and_why_others_stayed(bus: Bus, state: Path) -> None:
    calls: list[MoveCall] = []

    async def answer(call: MoveCall, _: Msg) -> MoveReply:
        calls.append(call)
        if call.to == "nowhere":
            raise HeadraceError(ErrorCode.NOT_FOUND, "there is no pool 'nowhere'")
        return MoveReply(moved=["r1"], stayed={"r2": "it runs already"} if call.request_ids else {})

    await bus.serve(subjects.move("p"), MoveCall, answer)
    await flushed(bus)
    all_ = await headrace_move(state, "--from", "p", "--to", "r", "--json")
    some = await headrace_move(state, "--from", "p", "--to", "r", "r1", "r2")
    none = await headrace_move(state, "--from", "p", "--to", "nowhere")
    unserved = await headrace_move(state, "--from", "q", "--to", "r")
    assert (all_[0], json.loads(all_[1])) == (0, {"moved": ["r1"], "stayed": {}})
    assert some[0] == 1
    assert "1 moved from p to r, 1 stayed\n  r2: it runs already" in some[1]
    assert (none[0], none[2].strip()) == (1, "there is no pool 'nowhere'")
    assert unserved[0] == 1
    assert "nobody serves a queue of pool 'q'" in unserved[2]
    assert [(call.to, call.request_ids) for call in calls] == [
        ("r", None),
        ("r", ["r1", "r2"]),
        ("nowhere", None),
    ]


async def test_nothing_runs(tmp_path: Path) -> None:
    code, _, told = await headrace_move(tmp_path, "--from", "p", "--to", "r")
    assert code == 3
    assert "not running" in told
