"""The topology's generations in the bucket: read, prepared, replaced by compare-and-set."""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, TypeVar

import nats.errors
import nats.js.errors
from nats.js.api import StorageType
from nats.js.kv import KeyValue

from contracts import subjects
from contracts.errors import ErrorCode, HeadraceError
from contracts.lifecycle import Actuals, Generation, Reason
from contracts.topology import Topology
from stages.runtime.bus import Bus
from stages.runtime.clock import now_ms

HISTORY: Final = 64  # generations kept for a way back: the most that a bucket can keep
_LIMIT_S: Final = 10.0  # a restart of nats-server in between costs a pause, not the change
_PAUSE_S: Final = 0.2

T = TypeVar("T")


@dataclass(frozen=True)
class Stored:
    """A generation and the revision it is stored under."""

    generation: Generation
    revision: int


class Generations:
    """The bucket HR_TOPOLOGY. Each call is tried again for 10 s while the bus is away, then raises
    `HeadraceError`."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    async def begin(self, topology: Topology, text: str) -> Generation:
        """At the start of a pipeline: what serves, a new generation only when it changed."""
        await _patiently(self._create)
        found = await self.spec()
        if found is not None and found.generation.topology == topology:
            return found.generation
        made = await self.next_one(topology, text, "start")
        await self.commit(made, 0 if found is None else found.revision)
        return made

    async def _create(self) -> KeyValue:
        return await self._bus.js.create_key_value(
            bucket=subjects.TOPOLOGY_BUCKET, history=HISTORY, storage=StorageType.FILE
        )

    async def spec(self) -> Stored | None:
        """What serves now."""
        return await self._read(subjects.TOPOLOGY_SPEC)

    async def candidate(self) -> Stored | None:
        """What is being prepared, or was when an earlier control ended."""
        return await self._read(subjects.TOPOLOGY_CANDIDATE)

    async def next_one(
        self, topology: Topology, text: str, reason: Reason, undoes: int | None = None
    ) -> Generation:
        """A generation above all that any process may have seen."""
        known = [
            one.generation.generation for one in (await self.spec(), await self.candidate()) if one
        ]
        return Generation(
            generation=max(known, default=0) + 1,
            topology=topology,
            text=text,
            reason=reason,
            applied_ms=now_ms(),
            undoes=undoes,
        )

    async def announce(self, candidate: Generation) -> None:
        """Let processes that are started for it read it."""
        value = candidate.model_dump_json().encode()

        async def put() -> None:
            await (await self._bucket()).put(subjects.TOPOLOGY_CANDIDATE, value)

        await _patiently(put)

    async def withdraw(self) -> None:
        """Nothing is prepared any more; its number may be used again, so nobody may still have it."""

        async def delete() -> None:
            await (await self._bucket()).delete(subjects.TOPOLOGY_CANDIDATE)

        await _patiently(delete)

    async def commit(self, generation: Generation, revision: int) -> int:
        """Make it the one that serves, provided that `revision` still is; returns its revision.

        Raises `HeadraceError` (conflict) when another was written meanwhile.
        """
        value = generation.model_dump_json().encode()

        async def update() -> int:
            try:
                return int(
                    await (await self._bucket()).update(subjects.TOPOLOGY_SPEC, value, revision)
                )
            except nats.js.errors.KeyWrongLastSequenceError:
                found = await self.spec()
                if found is not None and found.generation == generation:
                    return found.revision  # an earlier try was stored, its answer was lost
                raise HeadraceError(
                    ErrorCode.CONFLICT, "another change was made meanwhile; plan again"
                ) from None

        return await _patiently(update)

    async def history(self) -> list[Generation]:
        """All generations that are kept, oldest first."""

        async def read() -> list[Generation]:
            with contextlib.suppress(nats.js.errors.NoKeysError, nats.js.errors.NotFoundError):
                entries = await (await self._bucket()).history(subjects.TOPOLOGY_SPEC)
                return [Generation.model_validate_json(one.value) for one in entries if one.value]
            return []

        return await _patiently(read)

    async def actuals(self) -> Actuals:
        """What was decided while running."""

        async def read() -> Actuals:
            with contextlib.suppress(nats.js.errors.KeyNotFoundError):
                entry = await (await self._bucket()).get(subjects.TOPOLOGY_ACTUALS)
                return Actuals.model_validate_json(entry.value or b"{}")
            return Actuals()

        return await _patiently(read)

    async def keep_actuals(self, actuals: Actuals) -> None:
        """Replace them."""
        value = actuals.model_dump_json().encode()

        async def put() -> None:
            await (await self._bucket()).put(subjects.TOPOLOGY_ACTUALS, value)

        await _patiently(put)

    async def _read(self, key: str) -> Stored | None:
        async def read() -> Stored | None:
            with contextlib.suppress(nats.js.errors.KeyNotFoundError):
                entry = await (await self._bucket()).get(key)
                found = Generation.model_validate_json(entry.value or b"")
                return Stored(found, int(entry.revision or 0))
            return None

        return await _patiently(read)

    async def _bucket(self) -> KeyValue:
        return await self._bus.js.key_value(subjects.TOPOLOGY_BUCKET)


async def _patiently(work: Callable[[], Awaitable[T]]) -> T:
    """Again for as long as the bus may just be away."""
    deadline = time.monotonic() + _LIMIT_S
    while True:
        try:
            return await work()
        except nats.js.errors.APIError as error:
            if error.code != 503:
                raise HeadraceError(
                    ErrorCode.INTERNAL, f"the topology's bucket: {error}"
                ) from error
            last: Exception = error
        except (OSError, TimeoutError, nats.errors.Error) as error:
            last = error
        if time.monotonic() > deadline:
            raise HeadraceError(
                ErrorCode.NO_CAPACITY,
                f"the bus did not answer for {_LIMIT_S:.0f} s ({last!r}); is nats-server running?",
                retry_after_s=1.0,
            ) from last
        await asyncio.sleep(_PAUSE_S)
