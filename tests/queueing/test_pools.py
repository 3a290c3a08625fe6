"""Pools come, change and go while the service runs."""

import asyncio
import time
from typing import cast

import pytest

from contracts import subjects
from contracts.client import FinishReason
from contracts.errors import ErrorCode, HeadraceError
from contracts.internal import AdmitReply
from contracts.topology import Topology
from stages.queueing.owners import Owned, Owners
from stages.queueing.ownership import Timing
from stages.runtime.bus import Bus
from tests.queueing.conftest import Queueing
from tests.queueing.support import (
    ScriptedEgress,
    ScriptedExecutor,
    admit,
    make_work,
    running,
    until,
)
from tests.support.nats import flushed
from tests.support.stages import topology

P = {"model": "m", "kv_tokens": 4096, "buckets": [64, 256]}
Q = {"model": "big", "kv_tokens": 8192}


def with_pools(**pools: object) -> Topology:
    name = next(iter(pools))
    return topology(pools=pools, routes=[{"name": "default", "pool": name, "max_tokens": 64}])


async def test_a_bound_and_buckets_change_live(bus: Bus, queueing: Queueing) -> None:
    long, short = make_work(prompt=200), make_work(prompt=5)
    for work in (long, short):
        await admit(bus, work)
    pool = queueing.service.pools["p"]
    assert list(pool.order) == [short.request_id, long.request_id]
    changed = P | {"buckets": [1024], "queue": {"requests": 2}}
    await queueing.service.reconfigure(with_pools(p=changed, q=Q), 2)
    assert queueing.service.pools["p"] is pool
    assert list(pool.order) == [long.request_id, short.request_id]  # one bucket: by arrival
    with pytest.raises(HeadraceError) as refused:
        await admit(bus, make_work())
    assert refused.value.info.code is ErrorCode.SATURATED
    await queueing.service.reconfigure(with_pools(p=P, q=Q), 3)
    await admit(bus, make_work())


async def test_a_new_pool_is_served(bus: Bus, queueing: Queueing) -> None:
    new = {"model": "m", "kv_tokens": 4096}
    await queueing.service.reconfigure(with_pools(p=P, q=Q, r=new), 2)
    await flushed(queueing.bus)
    work = make_work(pool="r")
    await bus.request(subjects.admit("r"), work, AdmitReply, 10.0)
    assert "pool.r" in queueing.service.detail()


async def test_a_pool_that_holds_requests_may_not_go(
    bus: Bus, queueing: Queueing, executor: ScriptedExecutor, egress: ScriptedEgress
) -> None:
    executor.slots = 1
    await executor.speak()
    runs = await running(bus, executor, queueing)
    waits = make_work(deadline_ms=2**52)
    await admit(bus, waits)
    with pytest.raises(HeadraceError, match="'p' cannot go: 1 requests run and 1 wait") as refused:
        await queueing.service.prepare(with_pools(q=Q))
    assert refused.value.info.code is ErrorCode.CONFLICT
    await queueing.service.prepare(with_pools(p=P))

    await queueing.service.reconfigure(with_pools(q=Q), 2)  # one came in after all
    await flushed(queueing.bus)
    with pytest.raises(HeadraceError, match="nobody serves"):
        await admit(bus, make_work())
    await egress.end(runs, FinishReason.STOP)
    await executor.finish(runs.request_id)
    assert (await executor.next_lease()).work.request_id == waits.request_id
    await egress.end(waits, FinishReason.STOP)
    await until(lambda: queueing.service.owners.wanted() == {"q"})
    async with asyncio.timeout(20):
        while (await bus.js.stream_info(subjects.QUEUE_STREAM)).state.messages:
            await asyncio.sleep(0.02)

    await queueing.service.reconfigure(with_pools(p=P, q=Q), 3)  # and it comes back
    await flushed(queueing.bus)
    await admit(bus, make_work())
    assert queueing.service.pools["p"].epoch == 2  # epochs go on
    assert queueing.service.pools["p"].ledger.ended["finished"] == 2


async def test_a_request_of_a_pool_that_nobody_remembers_is_looked_after(
    bus: Bus, queueing: Queueing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was stored at the last moment, and every replica was started again since."""
    monkeypatch.setattr("stages.queueing.leaving.SELDOM", 1)
    await queueing.kill()
    queueing.plan = with_pools(q=Q)
    await queueing.start()
    assert queueing.service.owners.wanted() == {"q"}
    work = make_work()
    headers = {"Nats-Msg-Id": f"{work.request_id}:0"}
    await bus.js.publish(subjects.stored("p"), work.model_dump_json().encode(), headers=headers)
    await until(lambda: "p" in queueing.service.pools, 30)
    assert queueing.service.pools["p"].ledger.get(work.request_id) is not None


def test_a_pool_that_is_just_being_taken_is_not_forgotten() -> None:
    owned = cast("Owned", None)
    owners = Owners(cast("Bus", None), "a", time.monotonic, Timing(), owned)
    owners.want({"p"})
    busy = owners._busy["p"]

    async def race() -> None:
        async with busy:
            owners.forget("p")
            assert owners.wanted() == {"p"}
        owners.forget("p")

    asyncio.run(race())
    assert not owners.wanted()
