"""Changes of the running topology, over real stages on a real nats-server."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from contracts import subjects
from contracts.errors import ErrorCode, HeadraceError
from contracts.lifecycle import Actuals, ApplyCall, ApplyEvent
from contracts.topology import Topology
from stages.control import takeover
from stages.control.apply_door import ApplyDoor
from stages.control.change import Changer
from stages.control.generations import Generations
from stages.control.order import EXECUTOR, ProcessSpec, plan
from stages.runtime.bus import Bus
from stages.runtime.launch import BusAddress
from stages.runtime.streams import ensure_streams
from stages.runtime.topology_file import Report
from tests.control.dummy_fleet import DummyFleet
from tests.support.stages import topology
from tests.support.waiting import LIMIT_S, eventually

STAGES = ("queueing", EXECUTOR)  # enough to see everything


def planner(plan_for: Topology, actuals: Actuals) -> list[ProcessSpec]:
    """The two kinds of processes, as dummies."""
    found = [one for one in plan(plan_for, actuals) if one.stage in STAGES]
    return [replace(one, module="tests.support.dummy_stage") for one in found]


class Site:
    """A running pipeline of dummies and what changes it; it is its own `Host`."""

    def __init__(self, bus: Bus, fleet: DummyFleet) -> None:
        self.bus = bus
        self.fleet = fleet
        self.generations = Generations(bus)
        self.taken: list[int] = []
        self.steps: list[str] = []
        self.changer = self.another_changer()

    def another_changer(self) -> Changer:
        """As a control that was started again has it."""
        return Changer(self.bus, self.generations, self.fleet, planner, self)

    def check(self, report: Report) -> None:
        pass

    def expect(self, candidate: Any) -> None:
        pass

    async def take(self, generation: Any) -> None:
        self.taken.append(generation.generation)

    async def begin(self, first: Topology) -> None:
        """Everything up at generation 1."""
        await ensure_streams(self.bus.js, first)
        begun = await self.generations.begin(first, first.model_dump_json())
        for spec in planner(first, Actuals()):
            self.fleet.start(spec, begun.generation)
        await self.fleet.until_ready(list(self.fleet.specs()))

    async def apply(self, wanted: Topology, **call: Any) -> str:
        text = wanted.model_dump_json()
        return await self.changer.apply(
            ApplyCall(text=text, file="topology.yaml", **call), self.steps.append
        )

    async def serving(self) -> int:
        found = await self.generations.spec()
        assert found is not None
        return found.generation.generation

    def who(self) -> dict[str, str]:
        return self.fleet.incarnations()

    def beats_at(self) -> set[int]:
        beats = [self.fleet.beat(name) for name in self.fleet.specs()]
        return {beat.generation for beat in beats if beat is not None}


@pytest.fixture
async def site(bus: Bus, bus_address: BusAddress, tmp_path: Path) -> AsyncIterator[Site]:
    fleet = DummyFleet(bus, bus_address, tmp_path)
    await fleet.listen()
    made = Site(bus, fleet)
    await made.begin(FIRST)
    yield made
    await fleet.close()


def edited(base: Topology, **sections: Any) -> Topology:
    return Topology.model_validate(base.model_dump() | sections)


def pools(**changes: Any) -> dict[str, Any]:
    """One pool `p`, with changes, and more pools."""
    base = topology().pools["p"].model_dump()
    more = {name: one for name, one in changes.items() if isinstance(one, dict) and "model" in one}
    options = {name: one for name, one in changes.items() if name not in more}
    return {"p": base | options, **more}


FIRST = edited(topology(), pools=pools(), stages={"queueing": {"replicas": 1}})
MORE = edited(FIRST, pools=pools(executors={"min": 2, "max": 2}))
BIG = edited(FIRST, pools=pools(q={"model": "big", "kv_tokens": 8192}))


async def test_executors_come_and_go_and_everyone_else_stays(site: Site) -> None:
    before = site.who()
    assert await site.apply(MORE) == "generation 2 serves"
    assert set(site.who()) == {*before, "p-1"}
    assert await site.apply(FIRST) == "generation 3 serves"
    assert site.who() == before
    assert site.fleet.stopped == ["p-1"]
    assert site.beats_at() == {3}
    assert site.taken == [2, 3]


async def test_what_is_live_starts_and_stops_nothing(site: Site) -> None:
    before = site.who()
    priced = pools(price={"accelerator_hour": 2.0}, queue={"requests": 3})
    new = {**FIRST.tenants, "new": {"keys": []}}
    await site.apply(edited(FIRST, pools=priced, tenants=new))
    assert site.who() == before
    assert site.beats_at() == {2}
    history = await site.generations.history()
    assert [one.generation for one in history] == [1, 2]


async def test_the_same_again_is_no_change(site: Site) -> None:
    assert "nothing to change" in await site.apply(FIRST)
    assert await site.serving() == 1


async def test_a_replacement_is_ready_before_the_old_one_ends(site: Site) -> None:
    await site.apply(edited(FIRST, pools=pools(threads=1)))
    assert [name for name in site.who() if name.startswith("p-")] == ["p-1"]
    ready = site.steps.index("p-1 is ready")
    assert ready < site.steps.index("generation 2 is the one that serves")
    assert site.steps.index("draining p-0") > site.steps.index("all processes serve generation 2")


async def test_a_new_pool_whose_executor_does_not_start_changes_nothing(site: Site) -> None:
    before = site.who()
    site.fleet.wish("q-0", "start", "no such model")
    with pytest.raises(HeadraceError, match="q-0 does not start"):
        await site.apply(BIG)
    assert site.who() == before
    assert await site.serving() == 1
    assert site.beats_at() == {1}
    assert await site.generations.candidate() is None
    site.fleet.wish("q-0", "start", None)
    assert await site.apply(BIG) == "generation 2 serves"


async def test_a_process_that_says_no_stops_the_change(site: Site) -> None:
    before = site.who()
    site.fleet.wish("queueing-0", "prepare", "pool x holds 3 queued requests")
    with pytest.raises(HeadraceError, match="queueing-0: pool x holds 3 queued") as failed:
        await site.apply(BIG)
    assert failed.value.info.code == ErrorCode.CONFLICT
    assert site.who() == before, "what was started for it has ended"
    assert "q-0" in site.fleet.stopped
    assert await site.serving() == 1


async def test_a_process_that_cannot_take_it_over_undoes_it(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(takeover, "TAKE_S", 0.5)
    before = site.who()
    site.fleet.wish("queueing-0", "reconfigure", "a disk is full")
    with pytest.raises(
        HeadraceError, match=r"a disk is full.*generation 3 has the topology of"
    ) as _:
        await site.apply(BIG)
    found = await site.generations.spec()
    assert found is not None
    assert (found.generation.generation, found.generation.undoes) == (3, 1)
    assert found.generation.topology == FIRST
    assert site.who() == before
    assert site.taken == [2, 3]
    site.fleet.wish("queueing-0", "reconfigure", None)
    await eventually(lambda: site.beats_at() == {3})
    assert await site.apply(BIG) == "generation 4 serves"


async def test_one_change_at_a_time(site: Site) -> None:
    first = asyncio.create_task(site.apply(BIG, reason="watch"))
    await eventually(lambda: any("starting q-0" in step for step in site.steps))
    with pytest.raises(HeadraceError, match=r"one is being made \(watch: starting q-0\)") as second:
        await site.apply(MORE)
    assert second.value.info.code == ErrorCode.CONFLICT
    assert await first == "generation 2 serves"
    assert await site.apply(MORE) == "generation 3 serves"


async def test_a_change_made_for_another_generation_is_refused(site: Site) -> None:
    await site.apply(MORE, base=1)
    with pytest.raises(HeadraceError, match="generation 2 serves, this change was made for"):
        await site.apply(FIRST, base=1)


async def test_a_generation_written_by_someone_else_meanwhile_is_not_overwritten(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def meanwhile(*_: Any) -> int:
        found = await site.generations.spec()
        assert found is not None
        other = found.generation.model_copy(update={"generation": 9})
        await site.generations.commit(other, found.revision)
        return 0

    monkeypatch.setattr(site.changer._takeover, "prepare", meanwhile)
    with pytest.raises(HeadraceError, match="another change was made meanwhile"):
        await site.apply(MORE)
    assert await site.serving() == 9
    assert "p-1" in site.fleet.stopped


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("version: 1\npools: [", "not YAML"),
        (FIRST.model_dump_json().replace('"pool":"p"', '"pool":"x"'), "unknown pool 'x'"),
        (FIRST.model_dump_json().replace("4222", "4223"), "not while it runs: bus.port"),
        (FIRST.model_dump_json().replace('"model":"m"', '"model":"big"'), "add a new pool"),
    ],
)
async def test_what_cannot_be_is_refused_whole(site: Site, text: str, reason: str) -> None:
    with pytest.raises(HeadraceError, match=reason):
        await site.changer.apply(ApplyCall(text=text, file="f.yaml"), site.steps.append)
    assert await site.serving() == 1
    assert site.steps == []


async def test_a_removed_pool_that_still_holds_requests_keeps_its_executors(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was admitted between the question and the switch still runs."""
    await site.apply(BIG)
    monkeypatch.setattr("stages.control.retire.EMPTY_S", 0.0)
    await site.bus.store(subjects.stored("q"), b"{}", "request:0", deadline_s=5)
    assert await site.apply(FIRST) == "generation 3 serves"
    assert "q-0 will stop once the last requests of q have ended" in site.steps
    await site.changer.repair()
    assert "q-0" in site.who()
    assert await site.changer.astray() == [
        "q-0 is surplus: its pool is gone, it stops once that is empty"
    ]
    await site.bus.js.purge_stream(subjects.QUEUE_STREAM)
    await site.changer.repair()
    assert "q-0" not in site.who()
    assert await site.changer.astray() == []


async def test_what_a_control_that_died_before_the_switch_started_is_ended(site: Site) -> None:
    """Spec 1, candidate 2, its executor runs: rolled back; the number is not used again."""
    candidate = await site.generations.next_one(MORE, "", "apply")
    await site.generations.announce(candidate)
    extra = next(one for one in planner(MORE, Actuals()) if one.instance == "p-1")
    site.fleet.start(extra, candidate.generation)
    await site.fleet.until_ready(["p-1"])
    again = site.another_changer()
    await again.repair()
    assert site.fleet.stopped == ["p-1"]
    assert await site.serving() == 1
    await site.apply(edited(FIRST, currency="EUR"))
    assert await site.serving() == 3


async def test_what_a_control_that_died_had_started_must_be_ready_before_the_same_change_serves(
    site: Site,
) -> None:
    """It runs already, so it is not started; its pool must not serve before it is ready."""
    candidate = await site.generations.next_one(BIG, "", "apply")
    await site.generations.announce(candidate)
    site.fleet.wish("q-0", "start", "no such model")
    extra = next(one for one in planner(BIG, Actuals()) if one.instance == "q-0")
    site.fleet.start(extra, candidate.generation)
    with pytest.raises(HeadraceError, match="q-0 does not start"):
        await site.apply(BIG)
    assert await site.serving() == 1


async def test_what_a_control_that_died_after_the_switch_left_over_is_finished(site: Site) -> None:
    """Spec 2 with one executor of three wanted alive, and an outdated one: finished."""
    wanted = edited(FIRST, pools=pools(threads=1))
    made = await site.generations.next_one(wanted, "", "apply")
    found = await site.generations.spec()
    assert found is not None
    await site.generations.commit(made, found.revision)
    again = site.another_changer()
    await again.repair()
    assert "p-0" not in site.fleet.stopped, "nobody serves in its place yet"
    assert "p-1" in site.fleet.specs()
    await site.fleet.until_ready(["p-1"])
    await again.repair()
    assert site.fleet.stopped == ["p-0"]
    assert site.taken == [2]


async def test_what_was_decided_while_running_is_clamped(site: Site) -> None:
    wide = edited(FIRST, pools=pools(executors={"min": 1, "max": 3}))
    await site.apply(wide)
    await site.generations.keep_actuals(Actuals(executors={"p": 3, "gone": 2}))
    await site.changer.repair()
    await site.fleet.until_ready(["p-1", "p-2"])
    await site.apply(MORE)
    assert await site.generations.actuals() == Actuals(executors={"p": 2})
    assert {"p-0", "p-1", "queueing-0"} == set(site.who())


async def test_the_door_tells_each_step_and_the_end(site: Site) -> None:
    door = ApplyDoor(site.bus, site.changer, site.generations)
    await door.start()
    heard: list[ApplyEvent] = []
    inbox = site.bus.client.new_inbox()
    await site.bus.listen(inbox, lambda msg: heard.append(ApplyEvent.model_validate_json(msg.data)))
    for text, end in ((MORE.model_dump_json(), "done"), ("version: 2", "failed")):
        heard.clear()
        call = ApplyCall(text=text, file="topology.yaml")
        await site.bus.publish(subjects.APPLY, call, reply=inbox)
        await eventually(lambda: bool(heard) and heard[-1].event in ("done", "failed"), LIMIT_S)
        assert heard[-1].event == end
        assert heard[-1].generation == 2
    assert "generation 2 serves" in heard[-1].text
    assert "topology.yaml:1: version" in heard[-1].text
    assert json.loads(heard[-1].model_dump_json())["event"] == "failed"
    await door.stop()
