"""The receipt of a request whose egress cannot write it any more."""

from contracts.client import FinishReason, Timings
from contracts.errors import ErrorCode
from contracts.internal import Stamps
from contracts.usage import ReceiptEvent
from stages.queueing.ledger import Entry


def orphan_receipt(entry: Entry, reason: FinishReason, now_ms: float) -> ReceiptEvent:
    """Nothing is known to be delivered: no answer is billed."""
    work = entry.work
    received_ms = work.stamps.received
    timings = Timings(e2e_ms=max(now_ms - received_ms, 0.0), stages=stage_times(work.stamps))
    return ReceiptEvent.of(
        work,
        timings,
        received_ms,
        egress=work.egress,
        finish_reason=reason,
        error_code=_CODES.get(reason),
        prompt_tokens=entry.prompt_tokens,
    )


def stage_times(stamps: Stamps) -> dict[str, float]:
    """Milliseconds in each stage up to the queue, as far as the stamps tell."""
    marks = [
        ("ingress", stamps.received, stamps.ingress),
        ("routing", stamps.ingress, stamps.routing),
        ("queueing", stamps.routing, stamps.stored),
    ]
    return {
        name: round(end - start, 3)
        for name, start, end in marks
        if start is not None and end is not None
    }


_CODES = {
    FinishReason.ERROR: ErrorCode.INTERNAL.value,
    FinishReason.TIMEOUT: ErrorCode.DEADLINE_EXCEEDED.value,
}
