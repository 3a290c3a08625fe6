"""How soon a cancelled or abandoned request frees its slot, seen in the executor's own credit."""

import asyncio
import contextlib
import math
import time
from collections.abc import AsyncIterator
from statistics import median
from typing import Final

from nats.aio.msg import Msg

from contracts import subjects
from contracts.client import Accepted, Chunk, GenerateRequest
from contracts.frames import CREDIT_DECODER, Credit
from stages.cli.bench.calls import Caller, Record
from stages.cli.bench.pipeline.site import Site
from stages.runtime.bus import Bus

ROUNDS: Final = 24
TOKENS_BEFORE: Final = 6
FREED_S: Final = 10.0


class SlotWatch:
    """Notes when the executor's credit changes."""

    def __init__(self) -> None:
        self._credit: Credit | None = None
        self._changed = asyncio.Event()

    def take(self, msg: Msg) -> None:
        """A credit message."""
        self._credit = CREDIT_DECODER.decode(msg.data)
        self._changed.set()

    def busy(self, slots: int) -> bool:
        """Whether the last credit shows a slot in use."""
        return self._credit is not None and self._credit.free_slots < slots

    async def all_free(self, slots: int) -> float:
        """When all slots were first seen free (monotonic seconds)."""
        async with asyncio.timeout(FREED_S):
            while self._credit is None or self._credit.free_slots < slots:
                self._changed.clear()
                await self._changed.wait()
        return time.perf_counter()


@contextlib.asynccontextmanager
async def slot_watch(site: Site) -> AsyncIterator[SlotWatch]:
    """Watch the credit of the private pipeline's one executor."""
    bus = await Bus.connect(site.rig.internal_bus(), "bench")
    watch = SlotWatch()
    await bus.listen(subjects.CREDIT_ALL, watch.take)
    await bus.flush()
    try:
        yield watch
    finally:
        await bus.close()


async def cancel(site: Site, slots: int) -> dict[str, float]:
    """Both doors; every second time by a cancel call, else by leaving."""
    over = []
    async with slot_watch(site) as watch:
        for number in range(ROUNDS):
            await watch.all_free(slots)
            caller = site.doors[number // 2 % 2]
            over.append(await _once(caller, watch, slots, by_call=number % 2 == 0, site=site))
    over.sort()
    return {"pipeline.cancel_over_step_ms_p95": over[math.ceil(0.95 * len(over)) - 1]}


async def _once(
    caller: Caller, watch: SlotWatch, slots: int, *, by_call: bool, site: Site
) -> float:
    """Milliseconds from the client's act to the free slot, beyond one engine step."""
    request = GenerateRequest(
        prompt=site.prompts.text(16), max_tokens=400, temperature=0.0, ignore_eos=True
    )
    record = Record(request, time.perf_counter())
    async with contextlib.aclosing(caller.generate(request)) as answers:
        async for answer in answers:
            if isinstance(answer, Accepted | Chunk):
                record.take(answer)
            # only once a credit shows the slot in use can a later one show that it was freed
            if len(record.token_times) > TOKENS_BEFORE and watch.busy(slots):
                break
        acted = time.perf_counter()
        if by_call:
            assert record.request_id is not None
            await caller.cancel(record.request_id)
    freed = await watch.all_free(slots)
    return 1e3 * (freed - acted) - median(record.gaps_ms)
