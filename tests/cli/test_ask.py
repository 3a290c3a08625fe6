"""`headrace ask` as a user runs it: a process of its own against a real egress."""

import asyncio
import json
import signal
import sys
from asyncio.subprocess import PIPE, Process

import pytest

from contracts.client import FinishReason
from contracts.errors import ErrorCode, ErrorInfo
from contracts.internal import Settled
from stages.runtime.launch import BusAddress
from tests.egress.builders import make_item
from tests.egress.conftest import World, buffer_chunks, free_port, world
from tests.egress.test_callers import url_of
from tests.egress.test_nats_door import eventually

__all__ = ["buffer_chunks", "world"]
DOORS = pytest.mark.parametrize("door", ["grpc", "nats"])


async def start(*words: str) -> Process:
    """`headrace ask WORDS`."""
    command = [sys.executable, "-m", "stages.cli", "ask", *words]
    return await asyncio.create_subprocess_exec(*command, stdout=PIPE, stderr=PIPE)


async def finish(process: Process) -> tuple[int | None, str, str]:
    """Exit code, stdout, stderr."""
    out, err = await asyncio.wait_for(process.communicate(), 20)
    return process.returncode, out.decode(), err.decode()


def where(door: str, here: World, address: BusAddress) -> list[str]:
    """Options that lead to the test's doors."""
    return ["--door", door, "--url", url_of(address), "--address", here.grpc]


async def request_id(here: World) -> str:
    """Of the call that came, once its session is settled: frames before that would be one chunk."""
    for _ in range(1500):
        if here.calls and is_settled(here, here.calls[0].request_id):
            return here.calls[0].request_id
        await asyncio.sleep(0.01)
    raise AssertionError("no call came")


def is_settled(here: World, name: str) -> bool:
    """Whether the client was told that the request is accepted (or has ended)."""
    live = here.service._sessions._open.get(name)
    return live is None or live.session.terms is not None


@DOORS
async def test_text_on_stdout_figures_on_stderr(
    world: World, bus_address: BusAddress, door: str
) -> None:
    options = ["--max-tokens", "9", "--system", "Be brief.", "--show-journey"]
    process = await start("Hello?", *options, *where(door, world, bus_address))
    name = await request_id(world)
    await world.send(make_item("Hi the", 0, request_id=name))
    await world.send(make_item("re", 6, request_id=name, finish="stop"))
    code, out, err = await finish(process)
    assert (code, out) == (0, "Hi there\n")
    for figure in ("8 out", "TTFT", "TPOT", "USD", "pool small", "stop", "prefill"):
        assert figure in err
    body = json.loads(world.calls[0].body)
    assert [turn["role"] for turn in body["messages"]] == ["system", "user"]
    assert body["max_tokens"] == 9
    assert "temperature" not in body


async def test_json_is_one_document(world: World, bus_address: BusAddress) -> None:
    process = await start("Once", "--generate", "--json", *where("grpc", world, bus_address))
    await world.send(make_item(" upon", 0, request_id=await request_id(world), finish="length"))
    code, out, _ = await finish(process)
    answer = json.loads(out)
    assert (code, answer["text"], answer["finish_reason"]) == (0, " upon", "length")
    assert world.calls[0].verb == "generate"


@DOORS
async def test_a_refusal_is_one_clear_line(
    world: World, bus_address: BusAddress, door: str
) -> None:
    full = ErrorInfo(code=ErrorCode.SATURATED, message="the queue is full", retry_after_s=2)
    world.answer = lambda call: Settled(request_id=call.request_id, error=full)
    code, out, err = await finish(await start("Hi", *where(door, world, bus_address)))
    assert (code, out) == (1, "")
    assert err == "refused: saturated: the queue is full; try again in 2 s\n"


@DOORS
async def test_ctrl_c_cancels_the_request(world: World, bus_address: BusAddress, door: str) -> None:
    process = await start("Hi", *where(door, world, bus_address))
    await world.send(make_item("a", 0, request_id=await request_id(world)))
    assert process.stdout is not None
    await asyncio.wait_for(process.stdout.read(1), 10)
    process.send_signal(signal.SIGINT)
    code, out, err = await finish(process)
    assert (code, out) == (130, "\n")
    assert "1 out" in err
    assert "cancelled" in err
    assert "Traceback" not in err
    await eventually(lambda: world.notices)
    assert world.notices[0].reason is FinishReason.CANCELLED


@DOORS
async def test_ctrl_c_before_any_answer_just_leaves(
    world: World, bus_address: BusAddress, door: str
) -> None:
    world.may_answer.clear()
    process = await start("Hi", *where(door, world, bus_address))
    await eventually(lambda: world.calls)
    process.send_signal(signal.SIGINT)
    code, _, err = await finish(process)
    world.may_answer.set()
    assert (code, err) == (130, "")


@DOORS
async def test_nothing_runs(door: str) -> None:
    port = free_port()
    options = ["--url", f"nats://127.0.0.1:{port}", "--address", f"127.0.0.1:{port}"]
    code, _, err = await finish(await start("Hi", "--door", door, *options))
    assert code == 3
    assert "headrace up" in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    "options", [["--temperature", "-1"], ["--max-tokens", "0"], ["--door", "x"]]
)
async def test_wrong_usage(options: list[str]) -> None:
    code, _, err = await finish(await start("Hi", *options))
    assert code == 2
    assert options[0].removeprefix("--").replace("-", "_") in err.replace("-", "_")
