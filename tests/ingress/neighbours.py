"""Ingress and the real routing as a fixture; an egress and the queue behind them are scripted."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg
from pydantic import BaseModel

from contracts import subjects
from contracts.errors import ErrorCode, HeadraceError
from contracts.internal import AdmitReply, Beat, CancelNotice, ClientCall, Done, Settled, Work
from contracts.sessions import (
    SESSION_CALL,
    CancelSession,
    DropSession,
    OpenSession,
    ResumeSession,
    SessionRecord,
    SettleSession,
)
from stages.ingress.service import IngressService
from stages.routing.service import RoutingService
from stages.runtime.bus import Bus
from stages.runtime.clock import new_request_id, now_ms
from stages.runtime.launch import BusAddress
from stages.runtime.streams import ensure_streams
from tests.support.nats import flushed
from tests.support.stages import KEY, context, topology

AUTH = {"Authorization": f"Bearer {KEY}"}


def door_call(body: Any, verb: Any = "generate", **changes: Any) -> ClientCall:
    fields: dict[str, Any] = {
        "request_id": new_request_id(),
        "verb": verb,
        "egress": "e",
        "door": "grpc",
        "api_key": KEY,
        "tenant": None,
        "body": body if isinstance(body, str) else json.dumps(body),
        "received_ms": now_ms(),
    }
    return ClientCall(**fields | changes)


class Neighbours:
    """Egress e and the queue of pool p, scripted."""

    def __init__(self, bus: Bus, egress: str = "e") -> None:
        self._bus, self.egress = bus, egress
        self.dropped: asyncio.Queue[str] = asyncio.Queue()
        self.mute = False  # opens the session, but its answer is lost
        self.opened: list[OpenSession] = []
        self.settled: asyncio.Queue[Settled] = asyncio.Queue()
        self.admitted: list[Work] = []
        self.notices: asyncio.Queue[CancelNotice] = asyncio.Queue()
        self.opens = True
        self.running = {"mine": "acme"}
        self.refusal: HeadraceError | None = None
        self.silent = False
        self.deaf = 0  # so many admissions are heard by nobody who answers
        self.resumed: asyncio.Queue[ResumeSession] = asyncio.Queue()
        self.cancels = 0

    async def start(self) -> None:
        await self.hold_sessions()
        for pool in ("p", "q"):
            await self._bus.serve(subjects.admit(pool), Work, self._on_admit)
        await self._bus.listen(subjects.CANCEL_ALL, self._on_notice)
        await flushed(self._bus)

    async def hold_sessions(self) -> None:
        """As an egress; alive as long as the test."""
        subject = subjects.session(self.egress)
        await self._bus.serve(subject, SESSION_CALL, self._on_session)
        await self._beat()
        self._bus.spawn(self._beats())

    async def _beats(self) -> None:
        while not self._bus.client.is_closed:
            await self._beat()
            await asyncio.sleep(0.3)

    async def _beat(self) -> None:
        beat = Beat(
            stage="egress", instance=self.egress, incarnation=self.egress, pid=1, generation=1,
            ready=True, spawned_ms=0, sent_ms=now_ms(),
        )  # fmt: skip
        await self._bus.publish(subjects.beat("egress", self.egress), beat)

    async def _on_session(self, call: BaseModel, _: Msg) -> BaseModel | None:
        match call:
            case OpenSession():
                self.opened.append(call)
                return None if self.mute else Done(ok=self.opens)
            case DropSession():
                self.dropped.put_nowait(call.request_id)
            case SettleSession():
                self.settled.put_nowait(call.settled)
            case ResumeSession():
                self.resumed.put_nowait(call)
                return Done(ok=True)
            case CancelSession():
                self.cancels += 1
                if call.request_id not in self.running:
                    raise HeadraceError(ErrorCode.NOT_FOUND, "no such request here")
                return Done(ok=self.running.get(call.request_id) == call.tenant)
        return None

    async def _on_admit(self, work: Work, _: Msg) -> BaseModel | None:
        self.admitted.append(work)
        if self.refusal is not None:
            raise self.refusal
        if self.silent or self.deaf > 0:
            self.deaf -= 1
            return None
        bare = work.model_copy(update={"prompt_ids": []})
        return AdmitReply(work=bare, prompt_tokens=len(work.prompt_ids), position=3)

    async def record(self, work: Work, **changes: Any) -> None:
        """As an egress does once a request was accepted."""
        bare = work.model_copy(update={"prompt_ids": []})
        record = SessionRecord(
            request_id=work.request_id,
            tenant=work.tenant,
            egress=self.egress,
            terms=AdmitReply(work=bare, prompt_tokens=1, position=0),
        )
        await self._bus.publish(
            subjects.session_record(work.request_id), record.model_copy(update=changes)
        )

    def _on_notice(self, msg: Msg) -> None:
        self.notices.put_nowait(CancelNotice.model_validate_json(msg.data))


async def alive(ingress: IngressService, egresses: str) -> None:
    """Wait until ingress has heard of these, and of no others, in the last 2 s."""
    async with asyncio.timeout(20):
        while ingress.detail()["egresses"] != egresses:
            await asyncio.sleep(0.01)


@pytest.fixture
async def acme(bus_address: BusAddress) -> AsyncIterator[Client]:
    """A NATS client as a user of tenant acme writes one."""
    connected = await nats.connect(
        bus_address.url,
        user=bus_address.user,
        password=bus_address.password,
        inbox_prefix="_INBOX_acme",
    )
    yield connected
    await connected.close()


@pytest.fixture
async def neighbours(bus: Bus) -> Neighbours:
    made = Neighbours(bus)
    await made.start()
    return made


@pytest.fixture
async def ingress(
    bus_address: BusAddress, tmp_path: Path, neighbours: Neighbours
) -> AsyncIterator[IngressService]:
    """Ingress and the real routing on one connection, an egress heard."""
    bus = await Bus.connect(bus_address, "ingress")
    started = context(bus, bus_address, tmp_path, topology(), "ingress")
    service, routing = IngressService(started), RoutingService(started)
    await ensure_streams(bus.js, topology())
    await routing.start()
    await service.start()
    await flushed(bus)
    await alive(service, "e")
    yield service
    await service.drain()
    await routing.drain()
    await bus.close()
