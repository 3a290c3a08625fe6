"""Sessions at egress processes, seen from ingress: open, settle, find, cancel, hand over."""

import asyncio
import logging
import time
from typing import Final

import nats.errors
import nats.js.errors
from pydantic import BaseModel, ValidationError

from contracts import subjects
from contracts.errors import ErrorCode, HeadraceError
from contracts.internal import Done, Work
from contracts.sessions import CancelSession, DropSession, OpenSession, ResumeSession, SessionRecord
from stages.ingress.egresses import Egresses
from stages.runtime.bus import Bus, UnansweredError, UnservedError

OPEN_S: Final = 1.0
OPEN_TRIES: Final = 2
CANCEL_S: Final = 1.0
# A session whose egress died is adopted by another one within this time.
ADOPTED_S: Final = 3.0
PAUSE_S: Final = 0.1
_TROUBLE: Final = (OSError, TimeoutError, nats.errors.Error)

log = logging.getLogger("headrace.ingress")


class Sessions:
    """Asks egress processes; which of them live is told by `egresses`."""

    def __init__(self, bus: Bus, egresses: Egresses) -> None:
        self._bus = bus
        self._egresses = egresses

    async def open(self, work: Work, reply: str) -> str:
        """Have a live egress hold a NATS client's session; its name. Raises no_capacity."""
        call = OpenSession(
            request_id=work.request_id,
            tenant=work.tenant,
            reply=reply,
            received_ms=work.stamps.received,
        )
        for _ in range(OPEN_TRIES):
            egress = self._egresses.pick(time.monotonic())
            if await self._open_at(egress, call):
                return egress
            self._egresses.drop(egress)
            # Only its answer may be missing: the session must not live on beside another one.
            await self.tell(egress, DropSession(request_id=work.request_id))
        raise _none()

    async def _open_at(self, egress: str, call: OpenSession) -> bool:
        """Whether it holds the session. Raises invalid_request for an inbox it does not take."""
        try:
            return (await self._bus.request(subjects.session(egress), call, Done, OPEN_S)).ok
        except (HeadraceError, ValidationError, OSError, nats.errors.Error) as error:
            if isinstance(error, HeadraceError) and error.info.code is ErrorCode.INVALID_REQUEST:
                raise
            log.warning("egress %s opens no session: %r", egress, error)
            return False

    async def tell(self, egress: str, message: BaseModel | bytes) -> None:
        """Without waiting. What does not reach a session in 10 s, the egress does without."""
        try:
            await self._bus.publish(subjects.session(egress), message)
        except (OSError, nats.errors.Error) as error:
            log.warning("nothing goes to egress %s: %r", egress, error)

    async def resume(self, call: ResumeSession) -> None:
        """Have an egress go on with a session at a NATS client: the one that holds it, if it lives.

        From then on that egress alone speaks to the client. Raises no_capacity, and what it refuses.
        """
        record = await self.record(call.request_id)
        now_s = time.monotonic()
        living = self._egresses.alive(now_s)
        names = [record.egress] if record is not None and record.egress in living else []
        for _ in range(OPEN_TRIES):
            egress = names.pop() if names else self._egresses.pick(time.monotonic())
            try:
                await self._bus.request_bytes(subjects.session(egress), call, OPEN_S)
            except UnservedError:
                self._egresses.drop(egress)
                continue
            except UnansweredError:
                log.info("egress %s takes its time over %s", egress, call.request_id)
            return
        raise _none()

    async def cancel(self, session: CancelSession) -> bool:
        """End a session wherever it is; False when nobody has it (any more).

        One whose egress is lost is on its way to another: it is looked for again for a while.
        """
        end_s = time.monotonic() + ADOPTED_S
        while True:
            living = self._egresses.alive(time.monotonic())
            told = await asyncio.gather(*(self._cancel_at(name, session) for name in living))
            if any(told):
                return True
            if False in told or time.monotonic() >= end_s:
                return False
            record = await self.record(session.request_id)
            if record is None or record.tenant != session.tenant or record.complete is not None:
                return False
            await asyncio.sleep(PAUSE_S)

    async def _cancel_at(self, egress: str, session: CancelSession) -> bool | None:
        """False = it has ended there, None = it is not known there."""
        try:
            return (await self._bus.request(subjects.session(egress), session, Done, CANCEL_S)).ok
        except (HeadraceError, ValidationError, OSError, nats.errors.Error):
            return None

    async def record(self, request_id: str) -> SessionRecord | None:
        """What is recorded of a session; None when nothing is, or cannot be read now."""
        if not subjects.is_name(request_id):
            return None  # a caller's own word: it must not become a pattern
        try:
            found = await self._bus.js.get_last_msg(
                subjects.SESSION_STREAM, subjects.session_record(request_id), direct=True
            )
            return SessionRecord.model_validate_json(found.data or b"")
        except nats.js.errors.NotFoundError:
            return None
        except (*_TROUBLE, ValidationError) as error:
            log.warning("the record of session %s cannot be read: %r", request_id, error)
            return None

    async def known(self, request_id: str) -> bool:
        """Whether the request was accepted at some egress."""
        return await self.record(request_id) is not None


def _none() -> HeadraceError:
    return HeadraceError(
        ErrorCode.NO_CAPACITY,
        "no egress process opens a session; call again in 1 s",
        retry_after_s=1.0,
    )
