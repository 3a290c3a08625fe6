"""Asking routing and queueing to take a request: again while nobody answers, for admission is
idempotent by request id."""

import logging
from typing import Final

import nats.errors
from tenacity import (
    AsyncRetrying,
    RetryError,
    retry_if_exception_type,
    stop_after_delay,
    wait_random,
)

from contracts import subjects
from contracts.client import FinishReason
from contracts.errors import ErrorCode, HeadraceError
from contracts.internal import CancelNotice, Work
from stages.runtime.bus import Bus, UnansweredError, UnservedError
from stages.runtime.clock import now_ms

ADMIT_S: Final = 5.0
TRY_S: Final = 1.0
PAUSE_S: Final = (0.05, 0.1)
GRACE_S: Final = 0.5  # queueing itself answers a request whose deadline has come
RETRY_S: Final = 1.0

log = logging.getLogger("headrace.ingress")


class Admission:
    """The chain ingress → routing → queueing, seen from its asker."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    async def ask(self, work: Work) -> bytes:
        """The `AdmitReply` as it came; HeadraceError where the request was not taken.

        A refusal is final at once. While nobody serves a subject of the chain (an owner is being
        replaced), or no answer comes in a second, it is asked again, until 5 s or the deadline are
        over. Where an answer was missed it may be stored all the same: a notice tells queueing to
        forget it.
        """
        left_s = (work.deadline_ms - now_ms()) / 1000
        limit_s = min(ADMIT_S, max(left_s, 0.0) + GRACE_S)
        message = work.model_dump_json().encode()
        unclear = False
        try:
            async for attempt in AsyncRetrying(
                retry=retry_if_exception_type((UnservedError, UnansweredError)),
                stop=stop_after_delay(limit_s),
                wait=wait_random(*PAUSE_S),
            ):
                with attempt:
                    try:
                        return await self._bus.request_bytes(
                            subjects.ROUTE, message, min(TRY_S, limit_s)
                        )
                    except UnansweredError:
                        unclear = True
                        raise
        except RetryError as error:
            if unclear:
                await self.forget(work.request_id)
            raise _given_up(work, limit_s) from error
        except HeadraceError:
            if unclear:
                await self.forget(work.request_id)
            raise
        raise AssertionError("tenacity ends by an answer or an exception")

    async def forget(self, request_id: str) -> None:
        """Should it be stored, now or later: nobody waits for it."""
        notice = CancelNotice(request_id=request_id, reason=FinishReason.ERROR, orphan=True)
        try:
            await self._bus.publish(subjects.cancel(request_id), notice)
        except (OSError, nats.errors.Error) as error:
            log.warning("no notice about %s: %r", request_id, error)


def _given_up(work: Work, limit_s: float) -> HeadraceError:
    if now_ms() >= work.deadline_ms:
        return HeadraceError(ErrorCode.DEADLINE_EXCEEDED, "the deadline passed before admission")
    return HeadraceError(
        ErrorCode.NO_CAPACITY,
        f"the queue did not answer in {limit_s:.1f} s; call again in {RETRY_S:g} s",
        retry_after_s=RETRY_S,
    )


def settled(request_id: str, admitted: bytes) -> bytes:
    """A `Settled` as JSON around queueing's answer, which is not decoded on the way."""
    return b'{"request_id":"' + request_id.encode() + b'","admitted":' + admitted + b"}"


def settle_session(settlement: bytes) -> bytes:
    """A `SettleSession` as JSON around a `Settled`."""
    return b'{"op":"settle","settled":' + settlement + b"}"
