"""A process stays on the generation that serves, whatever it misses."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from nats.js.api import StorageType

from contracts import subjects
from contracts.errors import ErrorCode, HeadraceError
from contracts.internal import Done
from contracts.lifecycle import Generation, PrepareCall
from contracts.topology import Topology
from stages.control.generations import Generations
from stages.runtime import live_topology
from stages.runtime.bus import Bus
from stages.runtime.launch import BusAddress
from stages.runtime.live_topology import LiveTopology, read_generation
from stages.runtime.stage import Context, follow_topology
from tests.support.nats import NatsServer
from tests.support.stages import context, topology
from tests.support.waiting import eventually

NEVER_S = 1000.0


def generation(number: int) -> Generation:
    return Generation(
        generation=number, topology=topology(), text="", reason="apply", applied_ms=0.0
    )


async def put(bus: Bus, number: int, key: str = subjects.TOPOLOGY_SPEC) -> None:
    bucket = await bus.js.key_value(subjects.TOPOLOGY_BUCKET)
    await bucket.put(key, generation(number).model_dump_json().encode())


async def make_bucket(bus: Bus) -> None:
    await bus.js.create_key_value(
        bucket=subjects.TOPOLOGY_BUCKET, history=8, storage=StorageType.FILE
    )
    await put(bus, 1)


class Follower:
    """Takes generations, unless told to fail."""

    def __init__(self, bus: Bus) -> None:
        self.taken: list[int] = []
        self.failing: str | None = None
        self.live = LiveTopology(bus, generation(1), self.take)

    async def take(self, found: Generation) -> None:
        if self.failing is not None:
            raise HeadraceError(ErrorCode.INTERNAL, self.failing)
        self.taken.append(found.generation)


@pytest.fixture
async def follower(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> Follower:
    """Follows, and looks only when it is told to."""
    monkeypatch.setattr(live_topology, "LOOK_S", NEVER_S)
    monkeypatch.setattr(live_topology, "AGAIN_S", 0.05)
    await make_bucket(bus)
    return Follower(bus)


async def test_every_new_generation_is_taken_once(bus: Bus, follower: Follower) -> None:
    await follower.live.start()
    running = asyncio.create_task(follower.live.run())
    for number in (2, 3):
        await put(bus, number)
        await eventually(lambda: follower.taken[-1:] == [number])  # noqa: B023
    await put(bus, 2)  # never back
    await put(bus, 4)
    await eventually(lambda: follower.taken == [2, 3, 4])
    running.cancel()


async def test_a_change_between_the_first_reading_and_the_subscription_is_seen_at_once(
    bus: Bus, follower: Follower
) -> None:
    await put(bus, 2)
    await follower.live.start()
    running = asyncio.create_task(follower.live.run())
    await eventually(lambda: follower.taken == [2])
    running.cancel()


async def test_a_word_that_got_lost_is_made_good_by_a_look(
    bus: Bus, follower: Follower, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_topology, "LOOK_S", 0.05)
    running = asyncio.create_task(follower.live.run())  # not subscribed
    await put(bus, 2)
    await eventually(lambda: follower.taken == [2])
    running.cancel()


async def test_what_fails_is_told_and_tried_again(bus: Bus, follower: Follower) -> None:
    follower.failing = "a disk is full"
    await follower.live.start()
    running = asyncio.create_task(follower.live.run())
    await put(bus, 2)
    await eventually(lambda: follower.live.problem is not None)
    assert follower.live.problem == "generation 2 is not taken over: a disk is full"
    assert follower.live.current.generation == 1
    follower.failing = None
    await eventually(lambda: follower.taken == [2])
    await eventually(lambda: follower.live.problem is None)
    running.cancel()


@pytest.fixture
async def restarting(tmp_path: Path) -> AsyncIterator[tuple[Bus, Callable[[], None]]]:
    """A bus of its own and how to restart its server."""
    servers = [NatsServer(tmp_path)]
    bus = await Bus.connect(servers[0].address, "test")

    def restart() -> None:
        port = int(servers[-1].address.url.rpartition(":")[2])
        servers[-1].stop()
        servers.append(NatsServer(tmp_path, port))

    yield bus, restart
    await bus.close()
    servers[-1].stop()


async def test_a_restarted_server_changes_nothing(
    restarting: tuple[Bus, Callable[[], None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_topology, "LOOK_S", 0.2)
    bus, restart = restarting
    await make_bucket(bus)
    follower = Follower(bus)
    await follower.live.start()
    running = asyncio.create_task(follower.live.run())
    restart()
    await Generations(bus).spec()  # waits until it is back
    await put(bus, 2)
    await eventually(lambda: follower.taken == [2])
    running.cancel()


async def test_a_process_reads_the_generation_it_is_started_for(bus: Bus) -> None:
    await make_bucket(bus)
    assert (await read_generation(bus)).generation == 1
    assert (await read_generation(bus, 2)).generation == 1, "the candidate was withdrawn"
    await put(bus, 2, subjects.TOPOLOGY_CANDIDATE)
    assert (await read_generation(bus)).generation == 1
    assert (await read_generation(bus, 2)).generation == 2
    await put(bus, 3)
    assert (await read_generation(bus, 2)).generation == 3


class Loading:
    """A service that cannot load something."""

    def __init__(self) -> None:
        self.loading = 0
        self.most = 0

    async def prepare(self, topology: Topology) -> None:
        self.loading += 1
        self.most = max(self.most, self.loading)
        await asyncio.sleep(0)
        self.loading -= 1
        raise ValueError("weights are cut short")

    async def reconfigure(self, topology: Topology, generation: int) -> None:
        pass


async def test_whoever_asks_hears_why_it_cannot_be_served(
    bus: Bus, bus_address: BusAddress, tmp_path: Path
) -> None:
    await make_bucket(bus)
    service = Loading()
    mine: Context = context(bus, bus_address, tmp_path, topology(), "routing")
    await follow_topology(mine, generation(1), service)  # type: ignore[arg-type]
    subject = subjects.prepare(mine.launch.incarnation)
    call = PrepareCall(generation=generation(2))
    asked = (bus.request(subject, call, Done, 10) for _ in range(3))
    answers = await asyncio.gather(*asked, return_exceptions=True)
    assert [str(one) for one in answers] == ["ValueError: weights are cut short"] * 3
    assert service.most == 1, "one after the other"
