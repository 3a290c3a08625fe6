"""Alarms of sessions, without a bus."""

import asyncio
from collections.abc import Coroutine
from typing import Any, cast

from contracts.client import Accepted, Complete, FinishReason, Queued, Refused
from contracts.errors import ErrorCode, ErrorInfo
from contracts.frames import TokenFrame
from contracts.internal import AdmitReply, Door, Settled
from stages.egress.closed import Closed
from stages.egress.ending import Ending
from stages.egress.orders import Orders
from stages.egress.output import ChunkOut, End
from stages.egress.session import Session
from stages.egress.sessions import SHUTTING_DOWN, Sessions
from stages.runtime.bus import Bus
from stages.runtime.clock import now_ms
from tests.egress.builders import Letters, make_item, make_terms


class Recorder:
    """A bus and an ending that remember."""

    def __init__(self) -> None:
        self.ends: list[End] = []
        self.closed = Closed()
        self.records = self
        self.idle = asyncio.Event()
        self.idle.set()
        self._tasks: set[asyncio.Task[None]] = set()

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """As the bus does."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)

    def start(self, session: Session, end: End, __: object) -> None:
        """As the ending does."""
        self.ends.append(end)
        self.closed.add(session.request_id, session.tenant, 0, now_ms())

    async def begun(self, _: AdmitReply) -> None:
        """As the records do."""


class Listener:
    """A sink that remembers."""

    def __init__(self) -> None:
        self.sent: list[object] = []
        self.cut: list[ErrorCode] = []
        self.keeps_up = True

    def cut_off(self, error: ErrorInfo) -> None:
        """As a sink does."""
        self.cut.append(error.code)

    async def send(self, message: Accepted | Queued | Complete | Refused) -> None:
        """As a sink does."""
        self.sent.append(message)

    async def chunk(self, chunk: ChunkOut) -> bool:
        """As a sink does."""
        self.sent.append(chunk)
        return self.keeps_up

    def first_unsent(self) -> int | None:
        """As a sink does."""
        return None


def made() -> tuple[Recorder, Sessions]:
    recorder = Recorder()
    sessions = Sessions(
        cast("Bus", recorder), cast("Ending", recorder), lambda _: Letters(), "egress-0-aaaa"
    )
    return recorder, sessions


async def test_an_alarm_that_comes_after_the_end_is_not_set_again() -> None:
    recorder, sessions = made()
    sessions.open(Session("r1", "grpc", now_ms(), now_ms()), Listener())
    soon = make_terms(deadline_ms=int(now_ms()) + 30)
    await sessions.settle(Settled(request_id="r1", admitted=soon))
    live = sessions._open["r1"]
    await Orders(sessions).cancel("r1", "demo")
    await sessions._tick(live)
    await asyncio.sleep(0.1)
    assert [end.reason for end in recorder.ends] == [FinishReason.CANCELLED]
    assert live.alarm is not None
    assert live.alarm.cancelled()


async def test_the_deadline_rings_once() -> None:
    recorder, sessions = made()
    sessions.open(Session("r1", "grpc", now_ms(), now_ms()), Listener())
    soon = make_terms(deadline_ms=int(now_ms()) + 30)
    await sessions.settle(Settled(request_id="r1", admitted=soon))
    await sessions.idle(2.0)
    assert [end.reason for end in recorder.ends] == [FinishReason.TIMEOUT]
    assert sessions.counters()["timeouts"] == 1


async def test_opening_again_does_not_replace_a_session() -> None:
    _recorder, sessions = made()
    sessions.open(Session("r1", "nats", now_ms(), now_ms()), Listener())
    live = sessions._open["r1"]
    sessions.draining = True  # for new ones only
    sessions.open(Session("r1", "nats", now_ms(), now_ms()), Listener())
    assert sessions._open["r1"] is live


async def test_only_an_unsettled_nats_session_is_dropped() -> None:
    recorder, sessions = made()
    for name, door in (("grpc", "grpc"), ("settled", "nats"), ("waits", "nats")):
        sessions.open(Session(name, cast("Door", door), now_ms(), now_ms()), Listener())
    await sessions.settle(Settled(request_id="settled", admitted=make_terms("settled")))
    dropped = sessions._open["waits"]
    for name in ("grpc", "settled", "waits"):
        sessions.drop(name)
    assert sorted(sessions._open) == ["grpc", "settled"]
    await sessions._tick(dropped)  # its alarm was on its way
    assert recorder.ends == []
    assert dropped.alarm is not None
    assert dropped.alarm.cancelled()


async def test_only_what_waits_in_the_queue_ends_early() -> None:
    recorder, sessions = made()
    for name in ("runs", "queued", "opening"):
        sessions.open(Session(name, "nats", now_ms(), now_ms()), Listener())
    for name in ("runs", "queued"):
        await sessions.settle(Settled(request_id=name, admitted=make_terms(name)))
    await sessions.frame(TokenFrame("small-0", now_ms(), [make_item("a", 0, request_id="runs")]))
    await Orders(sessions).end_all(SHUTTING_DOWN, waiting_only=True)
    await asyncio.sleep(0)
    assert list(sessions._open) == ["runs"]
    assert [(end.reason, end.orphan) for end in recorder.ends] == [
        (FinishReason.ERROR, False),
        (FinishReason.ERROR, True),  # nobody knows its terms
    ]
    await Orders(sessions).end_all(SHUTTING_DOWN)
    assert not sessions._open


async def test_terms_that_cannot_be_settled_end_the_session() -> None:
    recorder, sessions = made()
    sessions.texts = {}.__getitem__  # no such model
    sessions.open(Session("r1", "nats", now_ms(), now_ms()), Listener())
    await sessions.settle(Settled(request_id="r1", admitted=make_terms()))
    await sessions.idle(20.0)
    assert [(end.reason, end.orphan) for end in recorder.ends] == [(FinishReason.ERROR, True)]
