"""Questions to others when a session moves here: its queueing owner, and the egress that had it."""

import logging
from collections.abc import Iterable
from typing import Final

import nats.errors
from pydantic import ValidationError

from contracts import subjects
from contracts.errors import ErrorCode, HeadraceError
from contracts.sessions import Progress, ProgressReply, TakeReply, TakeSession, YieldSession
from stages.runtime.bus import Bus, UnservedError

TAKE_S: Final = 1.0
YIELD_S: Final = 1.0

log = logging.getLogger("headrace.egress")


class NotYetError(Exception):
    """It cannot be said now: ask again."""


async def take(
    bus: Bus, request_id: str, tenant: str, egress: str, pools: Iterable[str]
) -> TakeReply | None:
    """Its queueing owner sends everything of the request to `egress` from now on.

    None when no pool knows it (any more). Raises `NotYetError` while a pool has no owner.
    """
    call = TakeSession(request_id=request_id, tenant=tenant, egress=egress)
    silent = False
    for pool in pools:
        try:
            return await bus.request(subjects.take(pool), call, TakeReply, TAKE_S)
        except HeadraceError as error:
            silent = silent or error.info.code is not ErrorCode.NOT_FOUND
        except (ValidationError, OSError, nats.errors.Error) as error:
            log.warning("the owner of %s does not give %s: %r", pool, request_id, error)
            silent = True
    if silent:
        raise NotYetError
    return None


async def yielded(
    bus: Bus, request_id: str, holders: Iterable[str | None], egress: str
) -> Progress | None:
    """What the egress that held it knows; it closes the session without a word. None when it is gone.

    Of several the first that knows it counts: the word of queueing goes before a record, which may be
    older. One that stands still (SIGSTOP) hears it later, before it could do any harm.
    """
    for holder in dict.fromkeys(holders):
        if holder is None or holder == egress:
            continue
        known = await _yielded_by(bus, request_id, holder, egress)
        if known is not None:
            return known
    return None


async def _yielded_by(bus: Bus, request_id: str, holder: str, egress: str) -> Progress | None:
    call = YieldSession(request_id=request_id, egress=egress)
    try:
        reply = await bus.request(subjects.session(holder), call, ProgressReply, YIELD_S)
    except UnservedError:
        return None
    except (HeadraceError, ValidationError, OSError, nats.errors.Error) as error:
        log.warning("egress %s does not yield %s: %s", holder, request_id, error)
        return None
    return reply.sessions[0] if reply.sessions else None
