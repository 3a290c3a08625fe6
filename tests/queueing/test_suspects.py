"""Who is evicted when a connection breaks: the policy, and the wiring on a real bus."""

import asyncio
import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts import subjects
from contracts.frames import FRAME_ENCODER
from contracts.internal import Done
from contracts.sessions import Progress, ProgressQuery
from stages.queueing.eviction import Eviction, Kind
from stages.queueing.suspects import CALM_S, RETURN_S, Suspects
from stages.runtime.bus import Bus
from tests.queueing.conftest import Queueing
from tests.queueing.support import ScriptedEgress, ScriptedExecutor, running, until
from tests.support.nats import flushed

NEVER = float("-inf")


def test_it_has_200_ms_to_come_back() -> None:
    suspects = Suspects()
    suspects.broke("x", 10.0)
    assert suspects.wait_s(10.0) == pytest.approx(RETURN_S)
    assert suspects.due(10.1, lambda _: 9.9) == []
    assert suspects.due(10.2, lambda _: 9.9) == ["x"]
    assert suspects.due(11.0, lambda _: 9.9) == []  # named once
    assert suspects.wait_s(11.0) is None


def test_who_is_heard_again_is_pardoned() -> None:
    suspects = Suspects()
    suspects.broke("x", 10.0)
    assert suspects.due(10.2, lambda _: 10.1) == []
    assert len(suspects) == 0


def test_words_from_before_the_break_do_not_pardon() -> None:
    suspects = Suspects()
    suspects.broke("x", 10.0)
    assert suspects.due(10.2, lambda _: 10.01) == ["x"]


def test_after_a_restart_of_the_bus_nobody_is_evicted_for_2_s() -> None:
    suspects = Suspects()
    suspects.broke("x", 10.0)
    suspects.calm(10.1)
    assert suspects.due(10.1 + CALM_S - 0.01, lambda _: NEVER) == []
    assert suspects.due(10.1 + CALM_S, lambda _: NEVER) == ["x"]


names = st.sampled_from("abc")
steps = st.lists(
    st.tuples(st.sampled_from(["broke", "heard", "calm", "due"]), names, st.floats(0.001, 1.0)),
    max_size=60,
)


@given(steps)
def test_evicted_are_exactly_the_broken_that_stayed_silent(
    moves: list[tuple[str, str, float]],
) -> None:
    suspects, now_s, calm_s = Suspects(), 100.0, NEVER
    broke: dict[str, float] = {}
    heard = dict.fromkeys("abc", NEVER)
    for what, name, passed_s in moves:
        now_s += passed_s
        if what == "broke":
            suspects.broke(name, now_s)
            broke.setdefault(name, now_s)
        elif what == "heard":
            heard[name] = now_s
        elif what == "calm":
            suspects.calm(now_s)
            calm_s = now_s
        else:
            for one in suspects.due(now_s, heard.__getitem__):
                assert now_s >= broke[one] + RETURN_S
                assert now_s >= calm_s + CALM_S
                assert heard[one] <= broke[one] + 0.02
                del broke[one]
            for one, broke_s in list(broke.items()):
                if heard[one] > broke_s + 0.02:
                    del broke[one]
            late = [one for one, broke_s in broke.items() if now_s >= broke_s + RETURN_S]
            assert not late or now_s < calm_s + CALM_S


class Watched:
    """Processes x and y under a real eviction; y answers questions."""

    def __init__(self, bus: Bus) -> None:
        self.lost: list[str] = []
        self.asked: list[str] = []
        kind = Kind(
            knows=lambda name: name in ("x", "y"),
            heard_s=lambda name: NEVER,
            subject=subjects.session,
            lose=self.lost.append,
        )
        self.eviction = Eviction(bus, time.monotonic, [kind])


def event(name: str) -> bytes:
    return json.dumps({"type": "io.nats.server.advisory.v1", "client": {"name": name}}).encode()


async def test_who_is_gone_is_lost_and_who_answers_is_not(bus: Bus) -> None:
    watched = Watched(bus)
    answered: list[str] = []

    async def answer(_: ProgressQuery, __: object) -> Done:
        return Done(ok=True)  # in fact it only says that it cannot read the question

    async def asked(_: object) -> None:
        answered.append("y")

    await bus.listen(subjects.DISCONNECTED, watched.eviction.on_disconnect)
    await bus.serve(subjects.session("y"), ProgressQuery, answer)
    watching = await bus.client.subscribe(subjects.session("y"), cb=asked)
    for name in ("y", "x", "stranger"):
        await bus.publish(subjects.DISCONNECTED, event(name))
    await bus.publish(subjects.DISCONNECTED, b'{"client": {}}')
    await flushed(bus)
    await until(lambda: watched.lost == ["x"] and "y" in answered)
    await watching.unsubscribe()
    await asyncio.sleep(0)
    assert watched.lost == ["x"]
    assert len(watched.eviction.suspects) == 0


async def test_a_broken_connection_loses_an_executor_at_once(
    bus: Bus, queueing: Queueing, executor: ScriptedExecutor, egress: ScriptedEgress
) -> None:
    """Its silence alone would take 3 s."""
    work = await running(bus, executor, queueing)
    egress.progress[work.request_id] = Progress(
        request_id=work.request_id, open=True, attempt=1, ids=[5]
    )
    executor.silent = True
    assert executor.listening is not None
    await executor.listening.unsubscribe()
    other = ScriptedExecutor(bus, "y")
    await other.start()
    known = queueing.service.board.executors["p"].known
    last = executor.credit()
    await bus.publish(subjects.credit("p"), FRAME_ENCODER.encode(last))
    await until(lambda: known["x"].credit.seq == last.seq)  # its last word is read
    await bus.publish(subjects.DISCONNECTED, event("x"))
    await until(lambda: len(queueing.service._eviction.suspects) == 1)
    await queueing.pass_time(0.5, other, egress)
    lease = await other.next_lease()
    assert (lease.work.request_id, lease.attempt) == (work.request_id, 2)
