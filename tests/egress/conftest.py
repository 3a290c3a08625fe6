"""An egress on a real bus; the test plays ingress, executor and queueing."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from nats.aio.msg import Msg

from contracts import subjects
from contracts.client import CancelReply, CancelRequest, ResumeRequest
from contracts.frames import FRAME_ENCODER, TokenFrame, TokenItem
from contracts.internal import CancelNotice, ClientCall, Done, Settled
from contracts.sessions import CancelSession, OpenSession, ResumeSession, SettleSession
from contracts.usage import USAGE_EVENT, ReceiptEvent
from stages.egress import service as egress_service
from stages.egress.service import EgressService
from stages.runtime.bus import Bus
from stages.runtime.clock import new_request_id, now_ms
from stages.runtime.launch import BusAddress, Launch
from stages.runtime.stage import Context
from tests.egress.builders import Letters, make_terms, make_topology

EGRESS = "egress-0-aaaa"
Answer = Callable[[ClientCall], Settled]


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class World:
    """Everything around the egress under test."""

    def __init__(self, bus: Bus, service: EgressService, address: str) -> None:
        self.bus = bus
        self.service = service
        self.grpc = address
        self.http = service._http.address
        self.resumed_at = EGRESS  # for NATS clients
        self.calls: list[ClientCall] = []
        self.notices: list[CancelNotice] = []
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.answer: Answer = lambda call: Settled(
            request_id=call.request_id, admitted=make_terms(call.request_id, token_ids=True)
        )

    async def start(self) -> None:
        """Play ingress (gRPC calls) and watch cancel notices."""
        await self.bus.js.add_stream(name=subjects.USAGE_STREAM, subjects=[subjects.USAGE_ALL])
        self.ingress = await self.bus.serve(subjects.ingress(0), ClientCall, self._on_call)
        await self.bus.client.subscribe(subjects.CLIENT_CALLS, cb=self._on_client)
        await self.bus.listen(
            subjects.CANCEL_ALL,
            lambda msg: self.notices.append(CancelNotice.model_validate_json(msg.data)),
        )
        await self.bus.client.flush()

    async def _on_call(self, call: ClientCall, _: Msg) -> Settled | CancelReply:
        if call.verb == "cancel":
            return await self._cancel(call.body)
        if call.verb == "resume":
            wanted = ResumeRequest.model_validate_json(call.body).request_id
            return Settled(request_id=wanted, same_as=wanted, tenant="demo")
        self.calls.append(call)
        await self.may_answer.wait()
        return self.answer(call)

    async def _cancel(self, body: str | bytes) -> CancelReply:
        request_id = CancelRequest.model_validate_json(body).request_id
        call = CancelSession(request_id=request_id, tenant="demo")
        await self.bus.request(subjects.session(EGRESS), call, Done, timeout_s=2)
        return CancelReply(request_id=request_id)

    async def _on_client(self, msg: Msg) -> None:
        """A NATS client's call."""
        tenant, verb = msg.subject.split(".")[2:4]
        if verb == "cancel":
            await self.bus.publish(msg.reply, await self._cancel(msg.data))
            return
        if verb == "resume":
            await self._resume(msg)
            return
        request_id = new_request_id()
        call = ClientCall(
            request_id=request_id,
            verb=verb,
            egress=EGRESS,
            door="nats",
            api_key=(msg.headers or {}).get("Authorization"),
            tenant=tenant,
            body=msg.data.decode(),
            received_ms=now_ms(),
        )
        self.calls.append(call)
        await self.open(request_id, msg.reply)
        await self.may_answer.wait()
        await self.settle(self.answer(call))

    async def _resume(self, msg: Msg) -> None:
        wanted = ResumeRequest.model_validate_json(msg.data)
        call = ResumeSession(
            request_id=wanted.request_id,
            tenant="demo",
            offset=wanted.offset,
            reply=msg.reply,
            received_ms=now_ms(),
        )
        await self.bus.publish(subjects.session(self.resumed_at), call)

    async def send(self, *items: TokenItem, to: str = EGRESS) -> None:
        """One engine step."""
        frame = FRAME_ENCODER.encode(TokenFrame("small-0-bbbb", now_ms(), list(items)))
        await self.bus.publish(subjects.tokens(to), frame)
        await self.bus.client.flush()

    async def open(self, request_id: str, reply: str) -> None:
        """As ingress does for a NATS client."""
        call = OpenSession(request_id=request_id, tenant="demo", reply=reply, received_ms=now_ms())
        done = await self.bus.request(subjects.session(EGRESS), call, Done, timeout_s=2)
        assert done.ok

    async def settle(self, settled: Settled) -> None:
        """Admission's outcome for a NATS client."""
        await self.bus.publish(subjects.session(EGRESS), SettleSession(settled=settled))

    async def receipts(self, count: int) -> list[ReceiptEvent]:
        """The next stored usage events, all receipts."""
        pull = await self.bus.js.pull_subscribe(subjects.USAGE_ALL, durable="test")
        messages = await pull.fetch(count, timeout=5)
        for message in messages:
            await message.ack()
        events = [USAGE_EVENT.validate_json(message.data) for message in messages]
        return [event for event in events if isinstance(event, ReceiptEvent)]


@pytest.fixture
def buffer_chunks() -> int:
    """Of the topology under test."""
    return 1024


@pytest.fixture
async def world(
    bus: Bus,
    bus_address: BusAddress,
    tmp_path: Path,
    buffer_chunks: int,
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[World]:
    """A started egress whose model spells letters."""
    monkeypatch.setattr(egress_service, "DRAIN_S", 2.7)
    monkeypatch.setattr(egress_service, "QUEUED_S", 0.1)
    monkeypatch.setattr(egress_service, "_tokenizer", lambda _: None)
    monkeypatch.setattr(egress_service, "TextStream", lambda _: Letters())
    address = f"127.0.0.1:{free_port()}"
    launch = Launch(
        stage="egress",
        instance="egress-0",
        incarnation=EGRESS,
        bus=bus_address,
        state=tmp_path,
        spawned_ms=now_ms(),
    )
    own = await Bus.connect(bus_address, EGRESS)
    service = EgressService(Context(launch, own, make_topology(address, buffer_chunks), 3))
    await service.start()
    await own.client.flush()
    here = World(bus, service, address)
    await here.start()
    yield here
    await service.drain()
    await own.close()
