"""Asking ingress, with an answer whatever happens."""

import logging
from typing import Final

import nats.errors
from pydantic import ValidationError

from contracts import subjects
from contracts.errors import ErrorCode, ErrorInfo, HeadraceError
from contracts.internal import Settled
from stages.egress.session import UNSETTLED_MS
from stages.runtime.bus import Bus

# The session gives up first (10 s); an answer after that is closed as an orphan.
ADMIT_TIMEOUT_S: Final = UNSETTLED_MS / 1000 + 5

log = logging.getLogger("headrace.egress")


async def ask_settled(bus: Bus, request_id: str, call: bytes) -> Settled:
    """What ingress decided of an encoded `ClientCall`; what goes wrong is an error in it."""
    try:
        return await bus.request(subjects.ingress(0), call, Settled, timeout_s=ADMIT_TIMEOUT_S)
    except HeadraceError as error:
        info = error.info
    except (OSError, nats.errors.Error):
        info = no_bus()
    except ValidationError:
        log.exception("unreadable answer about %s", request_id)
        info = ErrorInfo(code=ErrorCode.INTERNAL, message="admission failed; see egress's log")
    return Settled(request_id=request_id, error=info)


def no_bus() -> ErrorInfo:
    """The bus is not there."""
    message = "the message bus cannot be reached now; try again"
    return ErrorInfo(code=ErrorCode.NO_CAPACITY, message=message, retry_after_s=1.0)
