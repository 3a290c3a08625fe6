"""What a closed session is told and billed."""

from contracts.client import Complete, Cost, Usage
from contracts.internal import AdmitReply
from contracts.sessions import SessionRecord
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
        resumed=session.assembly.resumed,
        fingerprint=session.assembly.fingerprint,
    )


def _cost(session: Session, terms: AdmitReply, topology: Topology) -> Cost:
    pool = topology.pools.get(terms.work.pool or "")
    hour = pool.price.accelerator_hour if pool is not None else 0.0
    seconds = session.accelerator_s
    return Cost(
        amount=seconds * hour / 3600, currency=topology.currency, accelerator_s=round(seconds, 6)
    )


def make_record(session: Session, complete: Complete, egress: str) -> SessionRecord:
    """What another egress needs to give the finished answer once more."""
    terms, _ = _closed(session)
    return SessionRecord(
        request_id=session.request_id,
        tenant=terms.work.tenant,
        egress=egress,
        terms=terms,
        ids=session.assembly.ids[: session.tokens],
        complete=complete,
    )


def make_receipt(
    terms: AdmitReply, complete: Complete, egress: str, attempt: int, received_ms: float
) -> ReceiptEvent:
    """The usage event that bills the request (`egress` is the incarnation that ended it)."""
    return ReceiptEvent.of(
        terms.work,
        complete.timings,
        received_ms,
        egress=egress,
        finish_reason=complete.finish_reason,
        error_code=complete.error.code.value if complete.error is not None else None,
        attempt=attempt,
        prompt_tokens=terms.prompt_tokens,
        cached_tokens=complete.usage.cached_tokens,
        completion_tokens=complete.usage.completion_tokens,
        resumed=complete.resumed,
    )


def _closed(session: Session) -> tuple[AdmitReply, End]:
    assert session.terms is not None
    assert session.end is not None
    return session.terms, session.end
