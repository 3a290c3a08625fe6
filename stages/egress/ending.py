"""The last things done for a session: stop the executor, bill, tell the client."""

import asyncio
import logging
from typing import Final

import nats.errors

from contracts import subjects
from contracts.client import Refused
from contracts.errors import ErrorCode, ErrorInfo
from contracts.internal import CancelNotice
from contracts.topology import Topology
from stages.egress.output import End
from stages.egress.receipt import make_complete, make_receipt
from stages.egress.session import Session
from stages.egress.sink import Sink
from stages.runtime.bus import Bus
from stages.runtime.sender import DurableSender

# The client hears its end once the receipt is stored, so what it was told is what is billed even
# if this process dies right then. That is one store (0.3 ms) after the last text. When the stream
# is slow the client does not wait longer than this; the store goes on until it succeeds.
PATIENCE_S: Final = 0.5

log = logging.getLogger("headrace.egress")


class Ending:
    """Ends sessions on the bus and at the client."""

    def __init__(self, bus: Bus, topology: Topology, egress: str) -> None:
        self._bus = bus
        self._topology = topology
        self._egress = egress
        self.receipts = DurableSender(bus)  # a lost receipt is a request that nobody pays

    async def run(self, session: Session, end: End, sink: Sink) -> None:
        """Everything after the end of a session, most urgent first."""
        if end.running or end.orphan:
            await self.notify(session.request_id, end)
        if session.terms is None:
            error = end.error or ErrorInfo(code=ErrorCode.INTERNAL, message="not admitted")
            await sink.send(Refused(request_id=session.request_id, error=error))
            return
        receipt = make_receipt(session, self._egress)
        subject = subjects.usage("receipt", receipt.pool)
        storing = self.receipts.put(subject, receipt, receipt.key)
        await asyncio.wait({storing}, timeout=PATIENCE_S)
        await sink.send(make_complete(session, self._topology))
        await storing

    async def notify(self, request_id: str, end: End) -> None:
        """Tell queue and executor that nobody waits for this request."""
        notice = CancelNotice(request_id=request_id, reason=end.reason, orphan=end.orphan)
        try:
            await self._bus.publish(subjects.cancel(request_id), notice)
        except (OSError, nats.errors.Error) as error:
            log.warning("no cancel notice for %s: %s", request_id, error)
