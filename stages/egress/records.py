"""Records of sessions in the stream HR_SESSION: what another egress needs of ours, and we of others'."""

import logging
from typing import Final

import nats.errors
import nats.js.errors
from pydantic import ValidationError

from contracts import subjects
from contracts.client import MAX_REQUEST_BYTES
from contracts.internal import AdmitReply
from contracts.sessions import SessionRecord
from stages.runtime.bus import Bus

log = logging.getLogger("headrace.egress")
_GONE: Final = (OSError, TimeoutError, nats.errors.Error, nats.js.errors.Error)


class Records:
    """Writes without waiting (the stream acknowledges nothing); reads the last one of a request."""

    def __init__(self, bus: Bus, egress: str) -> None:
        self._bus = bus
        self._egress = egress

    async def begun(self, terms: AdmitReply) -> None:
        """A request was accepted, or taken over: its session is here."""
        work = terms.work
        record = SessionRecord(
            request_id=work.request_id, tenant=work.tenant, egress=self._egress, terms=terms
        )
        await self.write(work.request_id, record.model_dump_json().encode())

    async def write(self, request_id: str, record: bytes) -> None:
        """Publish; a bus that is away costs the record, not the request."""
        if len(record) > MAX_REQUEST_BYTES:
            log.warning(
                "the answer of %s is too long to be kept: %d bytes", request_id, len(record)
            )
            return
        try:
            await self._bus.publish(subjects.session_record(request_id), record)
        except (OSError, nats.errors.Error) as error:
            log.warning("no record of %s: %r", request_id, error)

    async def read(self, request_id: str) -> SessionRecord | None:
        """The last record; None when there is none or the stream cannot be read now."""
        if not subjects.is_name(request_id):
            return None  # not an id of ours, and it must not become a wildcard
        subject = subjects.session_record(request_id)
        try:
            found = await self._bus.js.get_msg(
                subjects.SESSION_STREAM, subject=subject, direct=True
            )
            return SessionRecord.model_validate_json(found.data or b"")
        except nats.js.errors.NotFoundError:
            return None
        except (*_GONE, ValidationError) as error:
            log.warning("the record of %s cannot be read: %r", request_id, error)
            return None
