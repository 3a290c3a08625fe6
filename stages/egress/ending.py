"""The last things done for a session: stop the executor, bill, tell the client."""

import asyncio
import logging
from typing import Final

import nats.errors

from contracts import subjects
from contracts.client import Complete, Refused
from contracts.errors import ErrorCode, ErrorInfo
from contracts.internal import CancelNotice
from contracts.sessions import SessionRecord
from contracts.topology import Topology
from contracts.usage import ReceiptEvent
from stages.egress.closed import Closed
from stages.egress.output import End
from stages.egress.receipt import make_complete, make_receipt, make_record
from stages.egress.records import Records
from stages.egress.session import Session
from stages.egress.sink import Sink
from stages.runtime.bus import Bus
from stages.runtime.clock import now_ms
from stages.runtime.sender import DurableSender

# The client hears its end once the receipt is stored, so what it was told is what is billed even
# if this process dies right then. That is one store (0.3 ms) after the last text. When the stream
# is slow the client does not wait longer than this; the store goes on until it succeeds.
PATIENCE_S: Final = 0.5

Kept = tuple[Complete, bytes]  # how a session has ended, and its record

log = logging.getLogger("headrace.egress")


class Ending:
    """Ends sessions on the bus and at the client. `topology` may be replaced: prices are live."""

    def __init__(self, bus: Bus, topology: Topology, egress: str) -> None:
        self._bus = bus
        self._egress = egress
        self.topology = topology
        self.records = Records(bus, egress)
        self.receipts = DurableSender(bus)  # a lost receipt is a request that nobody pays
        self.closed = Closed()
        self._busy = 0  # closed sessions whose receipt or last message is on its way
        self.idle = asyncio.Event()
        self.idle.set()

    def start(self, session: Session, end: End, sink: Sink) -> None:
        """A session has closed: whoever asks for it from now on is told how it has ended."""
        now = now_ms()
        self.closed.add(session.request_id, session.tenant, session.assembly.attempt, now)
        kept = self._record(session)
        if kept is not None:
            self.closed.keep(session.request_id, kept[1], now)
        self._busy += 1
        self.idle.clear()
        self._bus.spawn(self._finish(session, end, sink, kept))

    def _record(self, session: Session) -> Kept | None:
        """How it has ended, also encoded to be kept; None when it was never accepted."""
        if session.terms is None:
            return None
        complete = make_complete(session, self.topology)
        return complete, make_record(session, complete, self._egress).model_dump_json().encode()

    async def _finish(self, session: Session, end: End, sink: Sink, kept: Kept | None) -> None:
        try:
            await self._run(session, end, sink, kept)
            if kept is not None:
                self.closed.billed(session.request_id, end.reason, now_ms())
        finally:
            self._busy -= 1
            if not self._busy:
                self.idle.set()

    async def _run(self, session: Session, end: End, sink: Sink, kept: Kept | None) -> None:
        """Everything after the end of a session, most urgent first."""
        if end.running or end.orphan:
            await self.notify(session.request_id, end)
        if kept is None or session.terms is None:
            error = end.error or ErrorInfo(code=ErrorCode.INTERNAL, message="not admitted")
            await sink.send(Refused(request_id=session.request_id, error=error))
            return
        complete, record = kept
        # The record goes out first, in one packet with the receipt: should we die before the
        # receipt is stored, whoever takes the request over finds how it ended and bills that.
        await self.records.write(session.request_id, record)
        receipt = make_receipt(
            session.terms,
            complete,
            self._egress,
            session.assembly.attempt,
            session.moments.received,
        )
        storing = self._store(receipt)
        await asyncio.wait({storing}, timeout=PATIENCE_S)
        await sink.send(complete)
        await storing

    async def bill(self, record: SessionRecord, attempt: int) -> None:
        """Store the receipt of a session that another egress ended without getting that far."""
        assert record.complete is not None
        received_ms = record.terms.work.stamps.received
        await self._store(
            make_receipt(record.terms, record.complete, record.egress, attempt, received_ms)
        )

    def _store(self, receipt: ReceiptEvent) -> asyncio.Future[None]:
        # One key for a request: of two that end it the first is stored.
        return self.receipts.put(subjects.usage("receipt", receipt.pool), receipt, receipt.key)

    async def notify(self, request_id: str, end: End) -> None:
        """Tell queue and executor that nobody waits for this request."""
        notice = CancelNotice(request_id=request_id, reason=end.reason, orphan=end.orphan)
        try:
            await self._bus.publish(subjects.cancel(request_id), notice)
        except (OSError, nats.errors.Error) as error:
            log.warning("no cancel notice for %s: %s", request_id, error)
