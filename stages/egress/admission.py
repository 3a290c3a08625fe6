"""A door's questions to ingress. Every check of a call is made there, so all doors behave alike."""

import logging
import time
from typing import Final

import nats.errors
from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_delay, wait_random

from contracts import subjects
from contracts.errors import ErrorCode, ErrorInfo, HeadraceError
from contracts.internal import ClientCall, Settled
from stages.egress.session import UNSETTLED_MS
from stages.runtime.bus import Bus, UnansweredError, UnservedError

# The session itself gives up after 10 s; an answer after that is closed as an orphan.
ADMIT_TIMEOUT_S: Final = UNSETTLED_MS / 1000 - 0.5
UNARY_TIMEOUT_S: Final = 5.0
# An ingress that died with the question in hand never answers; admission is idempotent by request id.
TRY_S: Final = 2.0
LARGE_BYTES: Final = 256 << 10  # takes ingress longer, and is not given to it twice

log = logging.getLogger("headrace.egress")


async def admit(bus: Bus, request_id: str, call: ClientCall | bytes) -> Settled:
    """What became of a generate or chat call; whatever goes wrong becomes its refusal."""
    try:
        settled = Settled.model_validate_json(await _ask(bus, call, ADMIT_TIMEOUT_S))
        _check(settled, request_id)
        return settled
    except HeadraceError as error:
        return Settled(request_id=request_id, error=error.info)
    except (OSError, nats.errors.Error):
        return Settled(request_id=request_id, error=no_bus())
    except Exception:
        log.exception("admission of %s failed", request_id)
        info = ErrorInfo(code=ErrorCode.INTERNAL, message="admission failed; see egress's log")
        return Settled(request_id=request_id, error=info)


def _check(settled: Settled, request_id: str) -> None:
    """An answer that settles nothing here would leave the client waiting. Raises ValueError."""
    outcomes = (settled.admitted, settled.error, settled.same_as)
    if settled.request_id != request_id or all(each is None for each in outcomes):
        raise ValueError(f"ingress settled {settled.request_id!r} by {outcomes}")
    if settled.admitted is not None and settled.admitted.work.request_id != request_id:
        raise ValueError(f"ingress admitted {settled.admitted.work.request_id!r}")


async def ask(bus: Bus, call: ClientCall | bytes) -> bytes:
    """The answer to any other call, as JSON. Raises `HeadraceError`."""
    try:
        return await _ask(bus, call, UNARY_TIMEOUT_S)
    except (OSError, nats.errors.Error):
        error = HeadraceError(ErrorCode.NO_CAPACITY, no_bus().message)
        error.info = no_bus()
        raise error from None


async def _ask(bus: Bus, call: ClientCall | bytes, timeout_s: float) -> bytes:
    """In terms of clients, who know no subjects."""
    try:
        return await _keep_asking(bus, call, timeout_s)
    except UnservedError:
        message = "ingress is not there now; call again"
        raise HeadraceError(ErrorCode.NO_CAPACITY, message, retry_after_s=1.0) from None
    except UnansweredError:
        message = f"ingress did not answer in {timeout_s:.0f} s; call again"
        raise HeadraceError(ErrorCode.DEADLINE_EXCEEDED, message) from None


async def _keep_asking(bus: Bus, call: ClientCall | bytes, timeout_s: float) -> bytes:
    """Again while no ingress serves or answers: one that was lost is started again in a second."""
    question = call if isinstance(call, bytes) else call.model_dump_json().encode()
    end = time.monotonic() + timeout_s
    async for attempt in AsyncRetrying(
        retry=retry_if_exception_type((UnservedError, UnansweredError)),
        stop=stop_after_delay(timeout_s - TRY_S / 2),
        wait=wait_random(0.05, 0.1),
        reraise=True,
    ):
        with attempt:
            left_s = max(end - time.monotonic(), 0.1)
            try_s = left_s if len(question) > LARGE_BYTES else min(TRY_S, left_s)
            return await bus.request_bytes(subjects.ingress(0), question, try_s)
    raise AssertionError("tenacity ends by an answer or an exception")


async def who_resumes(bus: Bus, call: ClientCall | bytes) -> tuple[str, str]:
    """Request and tenant of a `resume` call. Raises `HeadraceError`."""
    settled = Settled.model_validate_json(await ask(bus, call))
    if settled.same_as is None or settled.tenant is None:
        info = settled.error or ErrorInfo(
            code=ErrorCode.INTERNAL, message="ingress names no tenant"
        )
        error = HeadraceError(info.code, info.message)
        error.info = info
        raise error
    return settled.same_as, settled.tenant


def no_bus() -> ErrorInfo:
    """The bus is away."""
    message = "the message bus cannot be reached now; try again"
    return ErrorInfo(code=ErrorCode.NO_CAPACITY, message=message, retry_after_s=1.0)
