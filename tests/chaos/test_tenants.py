"""Two tenants on every door: neither hears, cancels, resumes or guesses what the other does."""

import asyncio
import time

import nats
import pytest
from nats.aio.msg import Msg

from contracts import subjects
from contracts.client import Refused
from contracts.errors import ErrorCode
from stages.cli.bench.pipeline.site import Site
from stages.cli.rig import TENANT
from stages.runtime.client import AccessDenied, GrpcCaller, NatsCaller
from tests.chaos.conftest import OTHER, OTHER_KEY
from tests.chaos.traffic import Traffic, asking

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

TOKENS = 60
UNKNOWN = "01a22e50-0000-7000-8000-000000000000"


async def test_a_foreign_request_is_as_unknown_as_one_that_never_was(site: Site) -> None:
    rig = site.rig
    traffic = Traffic()
    mine = traffic.send(site.grpc, asking(TOKENS))
    while mine.record.request_id is None:
        await asyncio.sleep(0.01)
        assert traffic.running
    async with (
        await GrpcCaller.connect(rig.grpc_address, OTHER_KEY) as grpc,
        await NatsCaller.connect(rig.nats_url, OTHER, OTHER_KEY) as over_nats,
    ):
        for caller in (grpc, over_nats):
            for request_id in (mine.record.request_id, UNKNOWN):
                cancelled = await caller.cancel(request_id)
                resumed = [one async for one in caller.resume(request_id)]
                for answer in (cancelled, *resumed):
                    assert isinstance(answer, Refused)
                    assert answer.error.code is ErrorCode.NOT_FOUND
                    said = answer.error.message.replace(request_id, "ID").replace(OTHER, "TENANT")
                    assert TENANT not in said
    await traffic.ended()
    assert traffic.faults(TOKENS) == {}


async def test_nobody_hears_or_speaks_for_another(site: Site) -> None:
    rig = site.rig
    complaints: list[str] = []
    heard: list[Msg] = []

    async def complain(error: Exception) -> None:
        complaints.append(str(error).lower())

    async def hear(msg: Msg) -> None:
        heard.append(msg)

    spy = await nats.connect(
        rig.nats_url,
        user=OTHER,
        password=OTHER_KEY,
        error_cb=complain,
        inbox_prefix=subjects.inbox(OTHER),
    )
    forbidden = (f"{subjects.inbox(TENANT)}.>", "_INBOX.>", "hr.>", f"headrace.v1.{TENANT}.>", ">")
    for subject in forbidden:
        await spy.subscribe(subject, cb=hear)
    await spy.flush()
    traffic = Traffic()
    traffic.send(site.nats, asking(8))
    await traffic.ended()
    await spy.publish(subjects.client_call(TENANT, "models"), b"{}", reply=spy.new_inbox())
    await spy.flush()
    deadline = time.monotonic() + 30
    while len(complaints) <= len(forbidden) and time.monotonic() < deadline:
        await asyncio.sleep(0.05)
    assert len(complaints) == len(forbidden) + 1, complaints
    assert all("permissions violation" in one for one in complaints)
    assert heard == []
    assert traffic.faults(8) == {}
    await spy.close()


async def test_a_key_opens_only_its_own_tenants_door(site: Site) -> None:
    with pytest.raises(AccessDenied):
        await NatsCaller.connect(site.rig.nats_url, TENANT, OTHER_KEY)
    async with await GrpcCaller.connect(site.rig.grpc_address, OTHER_KEY, tenant=TENANT) as caller:
        [answer] = [one async for one in caller.generate(asking(4))]
    assert isinstance(answer, Refused)
    assert answer.error.code is ErrorCode.PERMISSION_DENIED
