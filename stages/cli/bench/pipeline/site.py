"""Where the suite measures: a private pipeline, callers on both doors, the engine beside it."""

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from stages.cli.bench.calls import Caller
from stages.cli.bench.inprocess import InProcess
from stages.cli.bench.prompts import Prompts
from stages.cli.rig import KEY, TENANT, Rig
from stages.runtime.client import GrpcCaller, NatsCaller


@dataclass(frozen=True)
class Site:
    """What the parts of the suite share."""

    rig: Rig
    grpc: GrpcCaller
    nats: NatsCaller
    prompts: Prompts

    @property
    def doors(self) -> tuple[Caller, Caller]:
        """Both doors, to be taken in turn."""
        return self.grpc, self.nats


@contextlib.asynccontextmanager
async def open_site(rig: Rig, seed: int) -> AsyncIterator[Site]:
    """Connect to a running pipeline."""
    async with (
        await GrpcCaller.connect(rig.grpc_address, KEY) as grpc,
        await NatsCaller.connect(rig.nats_url, TENANT, KEY) as nats,
    ):
        yield Site(rig, grpc, nats, Prompts(seed))


def beside(folder: Path) -> InProcess:
    """The engine in process, with the settings of the pipeline's pool."""
    return InProcess(folder, threads=2, kv_tokens=65536, slots=16)
