"""The egress stage: doors, sessions and receipts, tied to the bus."""

import asyncio
import time
from typing import Final

from contracts.topology import Topology
from stages.egress.delivery import Text
from stages.egress.ending import Ending
from stages.egress.frames import receive_frames
from stages.egress.grpc_door import GrpcDoor
from stages.egress.http.door import HttpDoor
from stages.egress.keys import Keys
from stages.egress.nats_door import NatsDoor
from stages.egress.neighbours import Neighbours
from stages.egress.orders import Orders
from stages.egress.renewal import Renewal
from stages.egress.resuming import Resuming
from stages.egress.sessions import SHUTTING_DOWN, Sessions
from stages.runtime.clock import now_ms
from stages.runtime.limits import DRAIN_S as DRAINS_S
from stages.runtime.loops import forever
from stages.runtime.models.artifacts import load_tokenizer
from stages.runtime.models.store import open_model
from stages.runtime.models.text_stream import TextStream
from stages.runtime.models.tokenizer import Tokenizer
from stages.runtime.stage import Context

DRAIN_S: Final = DRAINS_S["egress"]
# Of the drain time, this much is left for receipts and last messages.
LAST_S: Final = 2.5
# A request that no executor has begun to answer yet will hardly end in the rest of the drain time.
QUEUED_S: Final = 1.0
LOOK_S: Final = 0.5  # keys that expire, a bus that came back


class EgressService:
    """One replica."""

    def __init__(self, context: Context) -> None:
        self._topology = context.topology
        egress = context.launch.incarnation
        options = context.topology.stages.egress
        self._tokenizers: dict[str, Tokenizer] = {}  # by source
        self._sources: dict[str, str] = {}  # by model, also of models that are no longer served
        self._bus, self._egress, self._address = context.bus, egress, options.grpc
        self._ending = ending = Ending(context.bus, context.topology, egress)
        self.receipts = ending.receipts
        self._sessions = Sessions(context.bus, ending, self._text, egress)
        self._orders = Orders(self._sessions)
        self._neighbours = Neighbours(egress)
        self._renewal = Renewal(context.bus, self._sessions)
        self._keys = Keys(context.topology, now_ms)
        resuming = Resuming(self._sessions)
        self._nats = NatsDoor(context.bus, self._sessions, resuming, self._orders, egress)
        self._grpc = GrpcDoor(
            context.bus, self._sessions, resuming, egress, options.grpc, options.buffer_chunks
        )
        self._http = HttpDoor(
            context.bus, self._sessions, resuming, egress, options.http, options.buffer_chunks
        )
        self._started = time.monotonic()

    async def start(self) -> None:
        """Load the tokenizers, then take frames, questions and calls."""
        await self._serve(self._topology)
        await self._neighbours.start(self._bus)
        await receive_frames(self._bus, self._sessions, self._egress)
        await self._nats.start()
        await self._grpc.start()
        await self._http.start()
        looking = forever("looking after sessions", self._look, LOOK_S)
        self._looking = asyncio.get_running_loop().create_task(looking)

    async def prepare(self, topology: Topology) -> None:
        """Load the tokenizers of its new models. Raises ModelError."""
        for source in sorted({topology.model_of(name).source for name in topology.pools}):
            if source not in self._tokenizers:
                self._tokenizers[source] = await asyncio.to_thread(_tokenizer, source)

    async def reconfigure(self, topology: Topology, generation: int) -> None:
        """Prices, buffers and keys from now on; what is open keeps its tokenizer."""
        await self._serve(topology)
        self._grpc.buffer_chunks = topology.stages.egress.buffer_chunks
        self._http.buffer_chunks = topology.stages.egress.buffer_chunks
        self._keys = Keys(topology, now_ms)
        await self._orders.revoke(self._keys.valid)

    async def _serve(self, topology: Topology) -> None:
        await self.prepare(topology)
        self._topology = self._ending.topology = topology
        self._sources |= {name: model.source for name, model in topology.models.items()}

    async def _look(self) -> None:
        await self._orders.revoke(self._keys.valid)
        await self._renewal.look()

    async def drain(self) -> None:
        """Refuse new sessions, end queued ones soon, let running ones finish in time, end the rest
        (all with receipts). Where another egress serves nothing ends: clients go on there."""
        self._sessions.draining = True
        await self._grpc.refuse_new()
        self._http.refuse_new()
        grace_s = DRAIN_S - LAST_S / 2
        stopping = asyncio.gather(self._grpc.stop(grace_s), self._http.stop(grace_s))
        await self._sessions.idle(QUEUED_S)
        await self._give_up(waiting_only=True)
        await self._sessions.idle(DRAIN_S - LAST_S - QUEUED_S)
        await self._give_up(waiting_only=False)
        await self._sessions.idle(LAST_S / 2)
        self._nats.stop()
        self._looking.cancel()
        await self.receipts.drain(0)  # says how many are lost
        await stopping

    async def _give_up(self, *, waiting_only: bool) -> None:
        if self._neighbours.any():
            self._orders.send_away(SHUTTING_DOWN, waiting_only=waiting_only)
        else:
            await self._orders.end_all(SHUTTING_DOWN, waiting_only=waiting_only)

    def counters(self) -> dict[str, float]:
        """Sessions, chunks, tokens, frames."""
        return self._sessions.counters()

    def detail(self) -> dict[str, str]:
        """Where gRPC and HTTP clients connect, and for how long."""
        doors = {"grpc": self._address, "http": self._http.address}
        return {**doors, "uptime_s": f"{time.monotonic() - self._started:.0f}"}

    def _text(self, model: str) -> Text:
        return TextStream(self._tokenizers[self._sources[model]])


def _tokenizer(source: str) -> Tokenizer:
    return load_tokenizer(open_model(source))
