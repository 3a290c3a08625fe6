"""Which request has an idempotency key: one record for each, changed by compare-and-set only."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

import nats.errors
import nats.js.errors
from nats.js.api import KeyValueConfig, StorageType
from nats.js.kv import KeyValue
from pydantic import ValidationError

from contracts import subjects
from contracts.errors import ErrorCode, HeadraceError
from contracts.internal import IdempotencyRecord
from stages.ingress.identity import Identity
from stages.runtime.bus import Bus
from stages.runtime.clock import now_ms

KEPT_S: Final = 24 * 3600.0
ABANDONED_S: Final = 15.0  # admission takes 5 s: whoever claimed it and did not store it is dead
WAIT_S: Final = 6.0  # for a first call that is being admitted
PAUSE_S: Final = 0.1
RETRY_S: Final = 1.0
SETTLES_S: Final = 2.0  # an accepted request's session has its record by then, if it ever gets one
MAX_BYTES: Final = 256 << 20  # about a million keys
_TROUBLE: Final = (OSError, TimeoutError, nats.errors.Error)

Known = Callable[[str], Awaitable[bool]]

log = logging.getLogger("headrace.ingress")


@dataclass(frozen=True)
class Claim:
    """This request has the key, until it is refused."""

    key: str
    revision: int
    record: IdempotencyRecord


class Idempotency:
    """The records of all tenants (bucket HR_IDEMPOTENCY, 24 h).

    `known` tells whether a request was accepted (its session has a record): a first call may have
    been stored by an ingress that died before it could say so here.
    """

    def __init__(self, bus: Bus, known: Known) -> None:
        self._bus = bus
        self._known = known
        self._bucket: KeyValue | None = None

    async def claim(self, who: Identity, request_id: str, deadline_ms: float) -> Claim | str:
        """The key for this request, or the id of the earlier request that has it.

        Raises conflict for another body, no_capacity while an earlier call is still being admitted
        after 6 s or when the records cannot be reached.
        """
        end_s = time.monotonic() + min(WAIT_S, max((deadline_ms - now_ms()) / 1000, 0.0))
        mine = IdempotencyRecord(request_id=request_id, body_sha256=who.body, created_ms=now_ms())
        try:
            while True:
                outcome = await self._try(who, mine)
                if outcome is not None:
                    return outcome
                if time.monotonic() >= end_s:
                    raise _busy("the first call with this idempotency_key is still being admitted")
                await asyncio.sleep(PAUSE_S)
        except _TROUBLE as error:
            log.warning("idempotency keys cannot be reached: %r", error)
            raise _busy("idempotency keys cannot be looked up now") from error

    async def _try(self, who: Identity, mine: IdempotencyRecord) -> Claim | str | None:
        """One look; None where it has to be repeated."""
        bucket = await self._open()
        try:
            revision = await bucket.create(who.key, _bytes(mine))
            return Claim(who.key, revision, mine)
        except nats.js.errors.KeyWrongLastSequenceError:
            pass
        try:
            entry = await bucket.get(who.key)
        except nats.js.errors.KeyNotFoundError:
            return None  # freed meanwhile
        record, revision = _record(entry.value), entry.revision or 0
        if record is not None and record.request_id == mine.request_id:
            return Claim(who.key, revision, mine)  # the answer to our own `create` was lost
        if record is not None:
            if record.body_sha256 != who.body:
                raise _conflict(record)
            age_s = (now_ms() - record.created_ms) / 1000
            if await self._known(record.request_id) or (record.stored and age_s > SETTLES_S):
                return record.request_id
            if record.stored or age_s < ABANDONED_S:
                return None
            log.warning("%s never was stored, its key is taken over", record.request_id)
        try:
            return Claim(who.key, await bucket.update(who.key, _bytes(mine), revision), mine)
        except nats.js.errors.KeyWrongLastSequenceError:
            return None  # somebody else was quicker

    async def stored(self, claim: Claim) -> None:
        """The request was accepted: never run it again under this key."""
        record = claim.record.model_copy(update={"stored": True})
        try:
            await (await self._open()).update(claim.key, _bytes(record), claim.revision)
        except _TROUBLE as error:  # the session's record says it as well
            log.warning("the key of %s is not marked: %r", record.request_id, error)

    async def free(self, claim: Claim) -> None:
        """The request was refused: the key may be used again."""
        try:
            await (await self._open()).delete(claim.key, last=claim.revision)
        except _TROUBLE as error:  # it is taken over 15 s after its claim
            log.warning("the key of %s is not freed: %r", claim.record.request_id, error)

    async def _open(self) -> KeyValue:
        if self._bucket is None:
            self._bucket = await self._bus.js.create_key_value(
                KeyValueConfig(
                    bucket=subjects.IDEMPOTENCY_BUCKET,
                    ttl=KEPT_S,
                    history=1,
                    storage=StorageType.FILE,
                    max_bytes=MAX_BYTES,
                )
            )
        return self._bucket


def _bytes(record: IdempotencyRecord) -> bytes:
    return record.model_dump_json().encode()


def _record(value: bytes | None) -> IdempotencyRecord | None:
    try:
        return IdempotencyRecord.model_validate_json(value or b"")
    except ValidationError:
        log.exception("an idempotency record is unreadable and replaced")
        return None


def _conflict(record: IdempotencyRecord) -> HeadraceError:
    return HeadraceError(
        ErrorCode.CONFLICT,
        f"this idempotency_key belongs to request {record.request_id!r}, which had another body; "
        "repeat that call unchanged or use a new key",
        field="idempotency_key",
    )


def _busy(why: str) -> HeadraceError:
    return HeadraceError(
        ErrorCode.NO_CAPACITY, f"{why}; call again in {RETRY_S:g} s", retry_after_s=RETRY_S
    )
