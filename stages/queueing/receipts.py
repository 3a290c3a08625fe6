"""The receipt of a request whose egress cannot write it any more."""

from contracts.client import FinishReason
from contracts.errors import ErrorCode
from contracts.internal import Stamps
from contracts.usage import ReceiptEvent
from stages.queueing.ledger import Entry


def orphan_receipt(entry: Entry, reason: FinishReason, now_ms: float) -> ReceiptEvent:
    """Nothing is known to be delivered: no tokens are billed."""
    work = entry.work
    decision = work.decision()
    return ReceiptEvent(
        request_id=work.request_id,
        tenant=work.tenant,
        route=decision.route,
        pool=decision.pool,
        model=decision.model,
        reason=decision.reason,
        door=work.door,
        priority=work.priority,
        generation=work.generation,
        egress=work.egress,
        finish_reason=reason,
        error_code=_CODES.get(reason),
        attempt=0,
        prompt_tokens=entry.prompt_tokens,
        cached_tokens=0,
        completion_tokens=0,
        queue_ms=None,
        ttft_ms=None,
        tpot_ms=None,
        e2e_ms=max(now_ms - work.stamps.received, 0.0),
        received_ms=work.stamps.received,
        finished_ms=now_ms,
        stages=stage_times(work.stamps),
        metadata=work.metadata,
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
