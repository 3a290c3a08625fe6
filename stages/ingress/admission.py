"""Asking routing and queueing to take a request, and what an unclear answer means."""

import logging
from typing import Final

import nats.errors

from contracts import subjects
from contracts.client import FinishReason
from contracts.errors import ErrorCode, HeadraceError
from contracts.internal import CancelNotice, Work
from stages.runtime.bus import Bus
from stages.runtime.clock import now_ms

ADMIT_S: Final = 5.0
GRACE_S: Final = 0.5  # queueing itself answers a request whose deadline has come
RETRY_S: Final = 1.0

log = logging.getLogger("headrace.ingress")


class Admission:
    """The chain ingress → routing → queueing, seen from its asker."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    async def ask(self, work: Work) -> bytes:
        """The `AdmitReply` as it came; HeadraceError where the request was not taken.

        Without an answer it may be stored all the same: a notice tells queueing to forget it.
        """
        left_s = (work.deadline_ms - now_ms()) / 1000
        timeout_s = min(ADMIT_S, max(left_s, 0.0) + GRACE_S)
        try:
            return await self._bus.request_bytes(subjects.ROUTE, work, timeout_s)
        except HeadraceError as error:
            if error.info.code is not ErrorCode.DEADLINE_EXCEEDED:
                raise
            await self.forget(work.request_id)
            if now_ms() >= work.deadline_ms:
                raise HeadraceError(
                    ErrorCode.DEADLINE_EXCEEDED, "the deadline passed before admission"
                ) from error
            raise HeadraceError(
                ErrorCode.NO_CAPACITY,
                f"the queue did not answer in {timeout_s:.1f} s; call again in {RETRY_S:g} s",
                retry_after_s=RETRY_S,
            ) from error

    async def forget(self, request_id: str) -> None:
        """Should it be stored, now or later: nobody waits for it."""
        notice = CancelNotice(request_id=request_id, reason=FinishReason.ERROR, orphan=True)
        try:
            await self._bus.publish(subjects.cancel(request_id), notice)
        except (OSError, nats.errors.Error) as error:
            log.warning("no notice about %s: %r", request_id, error)


def settled(request_id: str, admitted: bytes) -> bytes:
    """A `Settled` as JSON around queueing's answer, which is not decoded on the way."""
    return b'{"request_id":"' + request_id.encode() + b'","admitted":' + admitted + b"}"


def settle_session(settlement: bytes) -> bytes:
    """A `SettleSession` as JSON around a `Settled`."""
    return b'{"op":"settle","settled":' + settlement + b"}"
