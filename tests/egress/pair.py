"""A second egress beside the one under test, and the two that a takeover asks."""

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator
from pathlib import Path

from nats.aio.msg import Msg

from contracts import subjects
from contracts.errors import ErrorCode, HeadraceError
from contracts.frames import FRAME_ENCODER, TokenFrame, TokenItem
from contracts.internal import AdmitReply, Done
from contracts.sessions import RepairCall, RepairReply, ResumeSession, TakeReply, TakeSession
from stages.egress.service import EgressService
from stages.runtime.bus import Bus
from stages.runtime.clock import now_ms
from stages.runtime.launch import BusAddress, Launch
from stages.runtime.stage import Context
from stages.runtime.streams import ensure_streams
from tests.egress.builders import ids_of, make_topology
from tests.egress.conftest import EGRESS, World, free_port
from tests.egress.test_nats_door import Inbox

OTHER = "egress-1-cccc"
EXECUTOR = "small-0-bbbb"


class Executor:
    """Knows the tokens of its attempts and where their frames go."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self.made: dict[str, str] = {}
        self.ended: dict[str, str] = {}
        self.to: dict[str, str] = {}
        self.asked: list[RepairCall] = []

    async def start(self) -> None:
        """Serve repair calls."""
        self._serving = await self._bus.serve(
            subjects.repair(EXECUTOR), RepairCall, self._on_repair
        )

    async def die(self) -> None:
        """Nobody answers any more."""
        await self._serving.unsubscribe()
        await self._bus.client.flush()

    async def make(
        self, request_id: str, text: str, finish: str | None = None, *, lost: bool = False
    ) -> None:
        """Tokens of one step; with `lost` their frame never arrives."""
        before = self.made.get(request_id, "")
        self.made[request_id] = before + text
        if finish is not None:
            self.ended[request_id] = finish
        if lost:
            return
        item = TokenItem(
            request_id, 1, len(before), ids_of(text), 7, 0, now_ms(), finish, None, "print"
        )
        frame = FRAME_ENCODER.encode(TokenFrame(EXECUTOR, now_ms(), [item]))
        await self._bus.publish(subjects.tokens(self.to.get(request_id, EGRESS)), frame)
        await self._bus.client.flush()

    async def _on_repair(self, call: RepairCall, _: Msg) -> RepairReply:
        self.asked.append(call)
        if call.request_id not in self.made:
            raise HeadraceError(ErrorCode.NOT_FOUND, "not here")
        if call.egress is not None:
            self.to[call.request_id] = call.egress
        return RepairReply(
            request_id=call.request_id,
            attempt=1,
            offset=call.offset,
            ids=ids_of(self.made[call.request_id])[call.offset :],
            accelerator_us=7,
            cached_tokens=0,
            started_ms=now_ms(),
            finish=self.ended.get(call.request_id),
            fingerprint="print",
        )


class Owner:
    """Knows the requests of the pool."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self.known: dict[str, TakeReply] = {}
        self.taken: list[TakeSession] = []

    async def start(self) -> None:
        """Serve takeovers."""
        await self._bus.serve(subjects.take("small"), TakeSession, self._on_take)

    def runs(self, terms: AdmitReply, executor: str | None = EXECUTOR, attempt: int = 1) -> None:
        """A request is leased."""
        before = terms.work.egress
        reply = TakeReply(terms=terms, executor=executor, attempt=attempt, before=before)
        self.known[terms.work.request_id] = reply

    async def _on_take(self, call: TakeSession, _: Msg) -> TakeReply:
        self.taken.append(call)
        reply = self.known.get(call.request_id)
        if reply is None or reply.terms.work.tenant != call.tenant:
            raise HeadraceError(ErrorCode.NOT_FOUND, "not here")
        self.known[call.request_id] = reply.model_copy(update={"before": call.egress})
        return reply


class Pair:
    """Two egresses; the first is the world's."""

    def __init__(self, world: World, other: EgressService, address: str) -> None:
        self.world = world
        self.other = other
        self.other_grpc = address
        self.executor = Executor(world.bus)
        self.owner = Owner(world.bus)

    async def resume(
        self,
        request_id: str,
        offset: int,
        *,
        at: str = OTHER,
        tenant: str = "demo",
        received_ms: float | None = None,
    ) -> Inbox:
        """As ingress does for a NATS client."""
        inbox = Inbox(self.world, tenant)
        await inbox.listen()
        call = ResumeSession(
            request_id=request_id,
            tenant=tenant,
            offset=offset,
            reply=inbox.subject,
            received_ms=received_ms or now_ms(),
        )
        done = await self.world.bus.request(subjects.session(at), call, Done, timeout_s=10)
        assert done.ok
        return inbox


@contextlib.asynccontextmanager
async def paired(
    world: World, address: BusAddress, folder: Path, *, alone: bool = True
) -> AsyncIterator[Pair]:
    """Start the second egress; `alone`: and an executor and an owner."""
    grpc_address = f"127.0.0.1:{free_port()}"
    topology = make_topology(grpc_address)
    await ensure_streams(world.bus.js, topology)
    launch = Launch(
        stage="egress",
        instance="egress-1",
        incarnation=OTHER,
        bus=address,
        state=folder,
        spawned_ms=now_ms(),
    )
    own = await Bus.connect(address, OTHER)
    service = EgressService(Context(launch, own, topology, 3))
    await service.start()
    await own.client.flush()
    pair = Pair(world, service, grpc_address)
    if alone:
        await pair.executor.start()
        await pair.owner.start()
    await world.bus.client.flush()
    yield pair
    await service.drain()
    await own.close()


@contextlib.asynccontextmanager
async def process(
    name: str, address: BusAddress, grpc_address: str
) -> AsyncIterator[asyncio.subprocess.Process]:
    """A real egress process, killed in the end."""
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.egress.egress_process",
        name,
        address.model_dump_json(),
        grpc_address,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert child.stdout is not None
        assert (await asyncio.wait_for(child.stdout.readline(), 60)).strip() == b"ready"
        yield child
    finally:
        if child.returncode is None:
            child.kill()
        await child.wait()
