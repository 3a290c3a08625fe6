"""A key is revoked while its calls stream: how long until they and its NATS connection have ended."""

import asyncio
import json
import time
from collections.abc import Callable
from hashlib import sha256
from typing import Final

import nats
from nats.aio.msg import Msg

from contracts import subjects
from contracts.lifecycle import Generation
from stages.cli.bench.lifecycle.call import Call, DoorName
from stages.cli.bench.lifecycle.http_call import HttpCaller
from stages.cli.bench.lifecycle.site import Site
from stages.cli.rig import TENANT
from stages.runtime.client import GrpcCaller, NatsCaller

NAME: Final = "bench-revoked"
TOKENS: Final = 2000
STARTED_S: Final = 30.0
ENDED_S: Final = 20.0


async def revoke(site: Site, say: Callable[[str], None]) -> float:
    """Seconds from the generation without the key to the end of the last stream and connection."""
    file = str(site.rig.topology)
    made = await asyncio.to_thread(
        site.rig.headrace, "keys", "create", TENANT, "--name", NAME, "--topology", file, "--json"
    )
    secret = str(json.loads(made)["key"])
    dropped: asyncio.Future[float] = asyncio.get_running_loop().create_future()

    async def gone() -> None:
        if not dropped.done():
            dropped.set_result(time.monotonic())

    raw = await nats.connect(
        site.rig.nats_url, user=TENANT, password=secret, inbox_prefix=subjects.inbox(TENANT),
        allow_reconnect=False, disconnected_cb=gone, error_cb=_ignore,
    )  # fmt: skip
    http = HttpCaller(site.rig.http_url, secret)
    async with (
        await GrpcCaller.connect(site.rig.grpc_address, secret) as grpc,
        await NatsCaller.connect(site.rig.nats_url, TENANT, secret) as caller,
    ):
        theirs = Site(site.rig, grpc, caller, http, site.bus, site.prompts, site.texts)
        try:
            seconds = await _watch(theirs, dropped, _without(secret))
        finally:
            await http.close()
            await raw.close()
    say(f"revoked: all had ended after {seconds:.2f} s")
    return seconds


async def _watch(
    site: Site, dropped: asyncio.Future[float], without: Callable[[Msg], bool]
) -> float:
    doors: tuple[DoorName, ...] = ("grpc", "nats", "http")
    calls = [Call(door, 0, TOKENS) for door in doors]
    running = [asyncio.create_task(site.run(call)) for call in calls]
    try:
        async with asyncio.timeout(STARTED_S):
            while not all(call.running for call in calls):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        revoked: list[float] = []

        def note(msg: Msg) -> None:
            if not revoked and without(msg):
                revoked.append(time.monotonic())

        spec = f"$KV.{subjects.TOPOLOGY_BUCKET}.{subjects.TOPOLOGY_SPEC}"
        listening = await site.bus.listen(spec, note)
        await site.bus.flush()
        words = ("keys", "revoke", NAME, "--topology", str(site.rig.topology))
        await asyncio.to_thread(site.rig.headrace, *words)
        try:
            async with asyncio.timeout(ENDED_S):
                await asyncio.gather(*running, dropped)
        except TimeoutError:
            return ENDED_S
        finally:
            await listening.unsubscribe()
        if not revoked:
            return ENDED_S
        return max(dropped.result(), *(call.ended for call in calls)) - revoked[0]
    finally:
        for task in running:
            task.cancel()


def _without(secret: str) -> Callable[[Msg], bool]:
    """Whether a stored generation does not take this key any more."""
    digest = "sha256:" + sha256(secret.encode()).hexdigest()

    def check(msg: Msg) -> bool:
        tenants = Generation.model_validate_json(msg.data).topology.tenants
        return all(key.hash != digest for each in tenants.values() for key in each.api_keys())

    return check


async def _ignore(_: Exception) -> None:
    """What matters is noticed otherwise."""
