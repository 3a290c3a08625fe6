"""A tenant's flood waits in its own line."""

import asyncio

import pytest

from contracts.errors import ErrorCode, HeadraceError
from stages.ingress import turns
from stages.ingress.turns import AT_ONCE, Turns


async def test_only_so_many_calls_of_a_tenant_are_in_work_and_others_do_not_wait_for_them() -> None:
    line, go = Turns(), asyncio.Event()
    begun: list[str] = []

    async def call(tenant: str) -> None:
        async with line.of(tenant, 1):
            begun.append(tenant)
            await go.wait()

    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        for _ in range(AT_ONCE + 10):
            group.create_task(call("loud"))
        group.create_task(call("quiet"))
        while "quiet" not in begun:
            await asyncio.sleep(0)
        assert begun.count("loud") == AT_ONCE
        go.set()
    assert begun.count("loud") == AT_ONCE + 10


@pytest.mark.parametrize(("calls", "size"), [(3, 1), (2, 60)])
async def test_a_full_line_refuses_and_takes_again_when_it_is_shorter(
    monkeypatch: pytest.MonkeyPatch, calls: int, size: int
) -> None:
    monkeypatch.setattr(turns, "MOST_CALLS", 3)
    monkeypatch.setattr(turns, "MOST_BYTES", 120)
    line, go = Turns(), asyncio.Event()

    async def call() -> None:
        async with line.of("loud", size):
            await go.wait()

    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        for _ in range(calls):
            group.create_task(call())
        await asyncio.sleep(0)
        with pytest.raises(HeadraceError) as refused:
            await call()
        assert refused.value.info.code is ErrorCode.SATURATED
        assert refused.value.info.retry_after_s
        async with line.of("quiet", size):
            go.set()
    async with line.of("loud", 1000):  # alone it may be as large as it likes
        pass
