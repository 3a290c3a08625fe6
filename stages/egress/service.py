"""The egress stage: doors, sessions and receipts, tied to the bus."""

import asyncio
import time
from typing import Final

from contracts.topology import Topology
from stages.egress.delivery import Text
from stages.egress.ending import Ending
from stages.egress.frames import receive_frames
from stages.egress.grpc_door import GrpcDoor
from stages.egress.nats_door import NatsDoor
from stages.egress.sessions import SHUTTING_DOWN, Sessions
from stages.runtime.limits import DRAIN_S as DRAINS_S
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


class EgressService:
    """One replica."""

    def __init__(self, context: Context) -> None:
        self._topology = context.topology
        egress = context.launch.incarnation
        options = context.topology.stages.egress
        self._tokenizers: dict[str, Tokenizer] = {}
        self._bus, self._egress, self._address = context.bus, egress, options.grpc
        ending = Ending(context.bus, context.topology, egress)
        self.receipts = ending.receipts
        self._sessions = Sessions(context.bus, ending, self._text)
        self._nats = NatsDoor(context.bus, self._sessions, egress)
        self._grpc = GrpcDoor(
            context.bus, self._sessions, egress, options.grpc, options.buffer_chunks
        )
        self._started = time.monotonic()

    async def start(self) -> None:
        """Load the tokenizers, then take frames, questions and calls."""
        for name in sorted({pool.model for pool in self._topology.pools.values()}):
            source = self._topology.models[name].source
            self._tokenizers[name] = await asyncio.to_thread(_tokenizer, source)
        await receive_frames(self._bus, self._sessions, self._egress)
        await self._nats.start()
        await self._grpc.start()

    async def prepare(self, topology: Topology) -> None:
        """Nothing to load."""

    async def reconfigure(self, topology: Topology, generation: int) -> None:
        """Nothing to change yet."""

    async def drain(self) -> None:
        """Refuse new sessions, end queued ones soon, let running ones finish in time, end the rest
        (all with receipts)."""
        self._sessions.draining = True
        await self._grpc.refuse_new()
        stopping = asyncio.ensure_future(self._grpc.stop(DRAIN_S - LAST_S / 2))
        await self._sessions.idle(QUEUED_S)
        await self._sessions.end_all(SHUTTING_DOWN, waiting_only=True)
        await self._sessions.idle(DRAIN_S - LAST_S - QUEUED_S)
        await self._sessions.end_all(SHUTTING_DOWN)
        await self._sessions.idle(LAST_S / 2)
        self._nats.stop()
        await self.receipts.drain(0)  # says how many are lost
        await stopping

    def counters(self) -> dict[str, float]:
        """Sessions, chunks, tokens, frames."""
        return self._sessions.counters()

    def detail(self) -> dict[str, str]:
        """Where gRPC clients connect, and for how long."""
        return {"grpc": self._address, "uptime_s": f"{time.monotonic() - self._started:.0f}"}

    def _text(self, model: str) -> Text:
        return TextStream(self._tokenizers[model])


def _tokenizer(source: str) -> Tokenizer:
    return load_tokenizer(open_model(source))
