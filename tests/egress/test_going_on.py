"""Callers whose egress, connection or nats-server dies under them: no repeat, no gap, one end."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path
from typing import Any

import nats.errors
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.client import Accepted, Chunk, Complete, Decision, Refused
from contracts.errors import ErrorCode, ErrorInfo
from contracts.internal import Settled
from stages.runtime.client import Answer, CannotConnect, GrpcCaller, NatsCaller, NoAnswer
from stages.runtime.client import continuing as module
from stages.runtime.client.continuing import Broken, Place, continued
from stages.runtime.clock import now_ms
from stages.runtime.launch import BusAddress
from stages.runtime.streams import ensure_streams
from tests.egress.builders import make_terms, make_topology
from tests.egress.conftest import World, free_port
from tests.egress.pair import Executor, Owner, paired, process
from tests.egress.test_callers import url_of
from tests.support.nats import NatsServer
from tests.support.waiting import eventually

ACCEPTED = Accepted(
    request_id="r1", decision=Decision(route="r", pool="p", model="m", reason="because")
)
CONFLICT = Refused(request_id="r1", error=ErrorInfo(code=ErrorCode.CONFLICT, message="taken"))
FULL = Refused(request_id="r1", error=ErrorInfo(code=ErrorCode.NO_CAPACITY, message="no owner"))


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[list[NatsServer]]:
    """A server of its own; a test may replace it."""
    servers = [NatsServer(tmp_path)]
    yield servers
    servers[-1].stop()


@pytest.fixture
async def bus_address(server: list[NatsServer]) -> BusAddress:
    return server[-1].address


@pytest.fixture
async def executor(world: World) -> Executor:
    """With the recorders made, and an owner that gives every request away."""
    await ensure_streams(world.bus.js, make_topology())
    executor, owner = Executor(world.bus), Owner(world.bus)
    await executor.start()
    await owner.start()

    def admit(call: Any) -> Settled:
        terms = make_terms(call.request_id, received=now_ms(), egress=call.egress, door=call.door)
        owner.runs(terms)
        executor.to[call.request_id] = call.egress
        return Settled(request_id=call.request_id, admitted=terms)

    world.answer = admit
    await world.bus.client.flush()
    return executor


class Reader:
    """Reads a stream beside the test."""

    def __init__(self, stream: AsyncGenerator[Answer, None]) -> None:
        self.answers: list[Answer] = []
        self._stream = stream
        self.task = asyncio.ensure_future(self._run())

    async def _run(self) -> None:
        async with contextlib.aclosing(self._stream):
            async for answer in self._stream:
                self.answers.append(answer)

    @property
    def text(self) -> str:
        """So far."""
        return "".join(each.text for each in self.answers if isinstance(each, Chunk))

    async def request_id(self) -> str:
        """Once it is accepted."""
        await eventually(lambda: bool(self.answers) or self.task.done())
        first = self.answers[0]
        assert isinstance(first, Accepted)
        return first.request_id

    async def end(self) -> Complete:
        """Its one terminal; what came before is checked for repeats."""
        await asyncio.wait_for(self.task, 60)
        kinds = [type(each) for each in self.answers]
        assert (kinds.count(Accepted), kinds.count(Complete)) == (1, 1)
        seqs = [each.seq for each in self.answers if isinstance(each, Chunk)]
        assert seqs == list(range(len(seqs)))
        last = self.answers[-1]
        assert isinstance(last, Complete)
        return last


async def test_a_grpc_stream_goes_on_when_its_egress_is_killed(
    world: World, executor: Executor, bus_address: BusAddress
) -> None:
    address = f"127.0.0.1:{free_port()}"
    async with (
        process("egress-2-dddd", bus_address, address) as one,
        process("egress-3-eeee", bus_address, address) as two,
        await GrpcCaller.connect(address, "secret") as caller,
    ):
        reader = Reader(caller.generate({"prompt": "a"}))
        request_id = await reader.request_id()
        await executor.make(request_id, "one ")
        await eventually(lambda: reader.text == "one ")
        first = executor.to[request_id]
        (one if first == "egress-2-dddd" else two).kill()
        await executor.make(request_id, "two ")
        await eventually(lambda: executor.to[request_id] != first)
        await executor.make(request_id, "three", "stop")
        last = await reader.end()
    assert reader.text == "one two three"
    assert last.usage.completion_tokens == 13
    (receipt,) = await world.receipts(1)
    assert receipt.egress != first


async def test_a_nats_stream_goes_on_when_its_egress_is_lost(
    world: World, executor: Executor, bus_address: BusAddress, tmp_path: Path
) -> None:
    async with (
        paired(world, bus_address, tmp_path, alone=False) as pair,
        await NatsCaller.connect(url_of(bus_address), "demo", "secret") as caller,
    ):
        reader = Reader(caller.generate({"prompt": "a"}))
        request_id = await reader.request_id()
        await executor.make(request_id, "one ")
        await eventually(lambda: reader.text == "one ")
        world.resumed_at = "egress-1-cccc"
        world.service._nats.stop()  # it stands still: no heartbeat, and it yields all the same
        await eventually(lambda: executor.to[request_id] == "egress-1-cccc")
        await executor.make(request_id, "two", "stop")
        await reader.end()
        assert reader.text == "one two"
        assert pair.other.counters()["taken_over"] == 1


async def test_a_nats_stream_goes_on_when_nats_server_is_killed(
    world: World,
    executor: Executor,
    server: list[NatsServer],
    bus_address: BusAddress,
    tmp_path: Path,
) -> None:
    port = int(bus_address.url.rpartition(":")[2])
    async with await NatsCaller.connect(url_of(bus_address), "demo", "secret") as caller:
        reader = Reader(caller.generate({"prompt": "a"}))
        request_id = await reader.request_id()
        await executor.make(request_id, "one ")
        await eventually(lambda: reader.text == "one ")
        server[-1].kill()
        await executor.make(request_id, "two ", lost=True)
        server.append(NatsServer(tmp_path, port))
        await streams_again(world)
        await executor.make(request_id, "three", "stop", lost=True)  # not even a gap is left
        await reader.end()
        assert reader.text == "one two three"
        (receipt,) = await world.receipts(1)
        assert receipt.completion_tokens == 13


async def streams_again(world: World) -> None:
    """As control does once the server is back."""
    async with asyncio.timeout(60):
        while True:
            try:
                await ensure_streams(world.bus.js, make_topology())
            except (OSError, TimeoutError, nats.errors.Error):
                await asyncio.sleep(0.05)
            else:
                return


async def test_resume_reads_a_request_of_another_caller(
    world: World, executor: Executor, bus_address: BusAddress
) -> None:
    async with (
        await NatsCaller.connect(url_of(bus_address), "demo", "secret") as nats_caller,
        await GrpcCaller.connect(world.grpc, "secret") as grpc_caller,
    ):
        reader = Reader(nats_caller.generate({"prompt": "a"}))
        request_id = await reader.request_id()
        await executor.make(request_id, "one ")
        await eventually(lambda: reader.text == "one ")
        resumed = Reader(grpc_caller.resume(request_id, 2))
        await eventually(lambda: resumed.text == "e ")
        await executor.make(request_id, "two", "stop")
        complete = await resumed.end()
        assert resumed.text == "e two"
        await asyncio.wait_for(reader.task, 60)
        last = reader.answers[-1]
        assert isinstance(last, Refused)
        assert last.error.code is ErrorCode.CONFLICT
        again = Reader(nats_caller.resume(request_id))
        assert await again.end() == complete
        assert again.text == "one two"


class Script:
    """Streams that say what they are told to, then break."""

    def __init__(self, *streams: list[Any]) -> None:
        self._left = list(streams)
        self.resumed: list[int] = []

    def first(self) -> AsyncGenerator[Answer, None]:
        """The next stream."""
        return self._say(self._left.pop(0))

    def resume(self, request_id: str, offset: int) -> AsyncGenerator[Answer, None]:
        """Also the next one."""
        assert request_id == "r1"
        self.resumed.append(offset)
        return self.first()

    async def _say(self, answers: list[Any]) -> AsyncGenerator[Answer, None]:
        for answer in answers:
            yield answer
        raise Broken("gone")


def chunk(seq: int, offset: int, text: str) -> Chunk:
    """One token a letter."""
    return Chunk(seq=seq, offset=offset, text=text, next_offset=offset + len(text))


async def read(script: Script, until_s: float = 30.0, **options: bool) -> list[Answer]:
    """All answers."""
    until = asyncio.get_running_loop().time() + until_s
    stream = continued(script.first, script.resume, Place(), until, **options)
    return [answer async for answer in stream]


async def test_what_passes_is_tried_again_and_what_does_not_is_told() -> None:
    script = Script([ACCEPTED, chunk(0, 0, "ab"), FULL], [FULL], [FULL], [ACCEPTED, CONFLICT])
    answers = await read(script)
    assert answers == [ACCEPTED, chunk(0, 0, "ab"), CONFLICT]
    assert script.resumed == [2, 2, 2]


async def test_a_resume_of_our_own_that_was_left_behind_ends_nothing() -> None:
    """It may be carried out after the next one, and replace it: only once, and nobody reads there."""
    begin = [ACCEPTED, chunk(0, 0, "ab"), FULL]
    script = Script(begin, [], [ACCEPTED, CONFLICT], [ACCEPTED, CONFLICT])
    assert await read(script) == [ACCEPTED, chunk(0, 0, "ab"), CONFLICT]
    assert script.resumed == [2, 2, 2]


async def test_what_breaks_before_it_was_accepted_is_an_error_without_a_key() -> None:
    with pytest.raises(CannotConnect):
        await read(Script([], [ACCEPTED]))
    answers = await read(Script([], [ACCEPTED, CONFLICT]), repeatable=True)
    assert answers == [ACCEPTED, CONFLICT]


async def test_a_request_that_cannot_be_resumed_in_time_is_no_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "PAUSE_S", 0.01)
    with pytest.raises(NoAnswer, match="broke off"):
        await read(Script([ACCEPTED], *[[]] * 1000), until_s=0.2)


@settings(max_examples=20)
@given(cuts=st.lists(st.integers(0, 9), max_size=5))
def test_breaks_anywhere_leave_one_text(cuts: list[int]) -> None:
    """Each stream sends some letters, one a chunk, and breaks; the last one ends."""
    text, streams, at = "abcdefghi", [], 0
    for cut in [*cuts, len(text)]:
        until = max(at, min(cut, len(text)))
        pieces = [chunk(n - at, n, text[n]) for n in range(at, until)]
        streams.append([ACCEPTED, *pieces])
        at = until
    streams[-1].append(CONFLICT)

    async def run() -> list[Answer]:
        return await read(Script(*streams))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "PAUSE_S", 0.001)
        answers = asyncio.run(run())
    chunks = [each for each in answers if isinstance(each, Chunk)]
    assert "".join(each.text for each in chunks) == text
    assert [each.seq for each in chunks] == list(range(len(text)))
    assert [type(each) for each in answers].count(Accepted) == 1
