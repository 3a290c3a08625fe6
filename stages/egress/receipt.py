"""What a closed session is told and billed."""

from contracts.client import Complete, Cost, Usage
from contracts.internal import AdmitReply
from contracts.topology import Topology
from contracts.usage import ReceiptEvent
from stages.egress.output import End
from stages.egress.session import Session


def make_complete(session: Session, topology: Topology) -> Complete:
    """The client's last message."""
    terms, end = _closed(session)
    return Complete(
        request_id=session.request_id,
        finish_reason=end.reason,
        usage=Usage(
            prompt_tokens=terms.prompt_tokens,
            cached_tokens=session.cached_tokens,
            completion_tokens=session.tokens,
            total_tokens=terms.prompt_tokens + session.tokens,
        ),
        cost=_cost(session, terms, topology),
        timings=session.moments.timings(terms.work.stamps),
        decision=terms.work.decision(),
        error=end.error,
    )


def _cost(session: Session, terms: AdmitReply, topology: Topology) -> Cost:
    pool = topology.pools.get(terms.work.pool or "")
    hour = pool.price.accelerator_hour if pool is not None else 0.0
    seconds = session.accelerator_s
    return Cost(
        amount=seconds * hour / 3600, currency=topology.currency, accelerator_s=round(seconds, 6)
    )


def make_receipt(session: Session, egress: str) -> ReceiptEvent:
    """The usage event that bills the request (`egress` is our incarnation)."""
    terms, end = _closed(session)
    work, timings = terms.work, session.moments.timings(terms.work.stamps)
    decision = work.decision()
    finished = session.moments.finished
    assert finished is not None
    return ReceiptEvent(
        request_id=session.request_id,
        tenant=work.tenant,
        route=work.route,
        pool=decision.pool,
        model=work.model,
        reason=decision.reason,
        door=work.door,
        priority=work.priority,
        generation=work.generation,
        egress=egress,
        finish_reason=end.reason,
        error_code=end.error.code.value if end.error is not None else None,
        attempt=session.assembly.attempt,
        prompt_tokens=terms.prompt_tokens,
        cached_tokens=session.cached_tokens,
        completion_tokens=session.tokens,
        queue_ms=timings.queue_ms,
        ttft_ms=timings.ttft_ms,
        tpot_ms=timings.tpot_ms,
        e2e_ms=timings.e2e_ms,
        received_ms=session.moments.received,
        finished_ms=finished,
        stages=timings.stages,
        metadata=work.metadata,
    )


def _closed(session: Session) -> tuple[AdmitReply, End]:
    assert session.terms is not None
    assert session.end is not None
    return session.terms, session.end
