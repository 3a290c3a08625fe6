"""From engine outputs to what the bus carries: token frames by egress, and attempts."""

from collections import defaultdict
from collections.abc import Iterable
from typing import Literal

from contracts.frames import TokenFrame, TokenItem
from contracts.usage import AttemptEvent, Price
from gpu_worker.output import StepOutput
from gpu_worker.request import Request, SamplingParams
from gpu_worker.roster import Held
from gpu_worker.timekeeping import Identity

AttemptFinish = Literal["stop", "length", "cancelled", "error", "moved", "lost"]


def to_request(held: Held) -> Request:
    """The engine's request for a lease."""
    work = held.lease.work
    return Request(
        id=held.engine_id,
        prompt_ids=tuple(work.prompt_ids),
        max_tokens=work.max_tokens,
        sampling=SamplingParams(
            temperature=work.sampling.temperature,
            top_k=work.sampling.top_k,
            top_p=work.sampling.top_p,
            seed=work.sampling.seed,
        ),
        ignore_eos=work.ignore_eos,
        resume_ids=tuple(held.lease.resume_ids),
    )


def book(held: Held, output: StepOutput, step_began_ms: float) -> None:
    """Add one step to an attempt's counters."""
    if not held.started_ms:
        held.started_ms = step_began_ms
    if not held.sampled:
        held.prefill_us += output.busy_us
    held.sampled += len(output.token_ids)
    held.ids += output.token_ids
    held.busy_us = output.busy_us_total
    held.computed = output.computed_tokens
    held.cached = output.cached_tokens


def to_item(held: Held, output: StepOutput, fingerprint: str = "") -> TokenItem:
    """What the client's egress needs of one step; `fingerprint` in an attempt's first item."""
    return TokenItem(
        request_id=held.lease.work.request_id,
        attempt=held.lease.attempt,
        offset=output.offset,
        ids=list(output.token_ids),
        accelerator_us=held.busy_us,
        cached_tokens=held.cached,
        started_ms=held.started_ms,
        finish=output.finish,
        fingerprint=fingerprint,
    )


def refused_item(held: Held, reason: str) -> TokenItem:
    """The engine can never run this request: the session ends as an error."""
    return TokenItem(
        request_id=held.lease.work.request_id,
        attempt=held.lease.attempt,
        offset=len(held.lease.resume_ids),
        ids=[],
        accelerator_us=0,
        cached_tokens=0,
        started_ms=held.started_ms,
        finish="error",
        error=reason,
    )


def to_frames(
    executor: str, items: Iterable[tuple[str, TokenItem]], sent_ms: float
) -> dict[str, TokenFrame]:
    """One frame per egress from (egress, item) pairs."""
    by_egress: defaultdict[str, list[TokenItem]] = defaultdict(list)
    for egress, item in items:
        by_egress[egress].append(item)
    return {egress: TokenFrame(executor, sent_ms, batch) for egress, batch in by_egress.items()}


def to_attempt(held: Held, finish: AttemptFinish, me: Identity, now: float) -> AttemptEvent:
    """What the attempt took, for the usage stream."""
    work = held.lease.work
    return AttemptEvent(
        request_id=work.request_id,
        attempt=held.lease.attempt,
        tenant=work.tenant,
        pool=me.pool,
        model=me.model,
        executor=me.executor,
        generation=work.generation,
        finish=finish,
        prompt_tokens=len(work.prompt_ids),
        cached_tokens=held.cached,
        computed_tokens=held.computed,
        completion_tokens=held.sampled,
        accelerator_s=held.busy_us / 1e6,
        prefill_s=held.prefill_us / 1e6,
        started_ms=held.started_ms or now,
        finished_ms=now,
        price=Price(
            accelerator_hour=held.hourly(me.price.accelerator_hour), currency=me.price.currency
        ),
        zone=me.zone,
        device=me.device,
        fraction=me.fraction,
        fingerprint=me.fingerprint,
        epoch=held.lease.epoch,
    )
