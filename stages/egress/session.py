"""One request as its client sees it: opening → accepted → streaming → closed. Pure; time passed in.

A method that can move the session returns a `Step`: the chunk to send and, once in the life of a
session, its end. All times are unix ms.
"""

import math
from enum import Enum
from typing import Final

from contracts.client import FinishReason
from contracts.errors import ErrorCode, ErrorInfo
from contracts.frames import TokenItem
from contracts.internal import AdmitReply, Door
from contracts.sessions import Progress
from stages.egress.assembly import Assembly
from stages.egress.delivery import Delivery, Text
from stages.egress.moments import Moments
from stages.egress.output import NOTHING, ChunkOut, End, Step

UNSETTLED_MS: Final = 10_000.0
# How an attempt ends its request. One that was cancelled, moved or lost does not: whoever cancels a
# request ends its session here first, so another attempt goes on with what is still open.
ENDS: Final = frozenset({FinishReason.STOP, FinishReason.LENGTH, FinishReason.ERROR})


class Phase(Enum):
    """How far a session is."""

    OPENING = "opening"
    ACCEPTED = "accepted"
    STREAMING = "streaming"
    CLOSED = "closed"


class Session:
    """State of one request from its opening to its one end."""

    def __init__(
        self, request_id: str, door: Door, received_ms: float, now: float, tenant: str | None = None
    ) -> None:
        self.request_id = request_id
        self.door = door
        self.tenant = tenant  # None until a gRPC client's key has been looked up
        self.phase = Phase.OPENING
        self.terms: AdmitReply | None = None
        self.end: End | None = None
        self.assembly = Assembly()
        self.moments = Moments(received_ms)
        self.tokens = 0  # delivered
        self.cached_tokens = 0
        self.wake_ms = now + UNSETTLED_MS  # `tick` has nothing to do before
        self._accelerator_us: dict[int, int] = {}  # by attempt, cumulative
        self._deadline_ms = self.wake_ms
        self._alone_until_ms = math.inf  # without a client it ends then
        self._reached: int | None = None  # tokens that its last client had
        self._delivery: Delivery | None = None
        self._final: TokenItem | None = None
        self._wanted: End | None = None  # asked for before the terms had come

    @property
    def accelerator_s(self) -> float:
        """Accelerator time of all attempts, as far as their frames told."""
        return sum(self._accelerator_us.values()) / 1e6

    def settle(self, terms: AdmitReply, text: Text, now: float) -> Step:
        """The request was accepted on these terms; tokens that came earlier are delivered now."""
        work = terms.work
        self.terms, self.tenant, self.phase = terms, work.tenant, Phase.ACCEPTED
        self._delivery = Delivery(text, work.stop, with_ids=work.token_ids)
        self._deadline_ms = float(work.deadline_ms)
        self._set_wake()
        if self._wanted is not None:
            return self.finish(self._wanted, now)
        return (
            self._deliver(self._delivery, 0, now) if self.assembly.ids or self._final else NOTHING
        )

    def move(self, terms: AdmitReply) -> bool:
        """Another pool has the request now, under the next hop; False for what is known already."""
        if self.terms is None or terms.work.hop <= self.terms.work.hop:
            return False
        self.terms = terms
        return True

    def take(self, item: TokenItem, sent_ms: float, now: float) -> Step:
        """Tokens from an executor, in a frame sent at `sent_ms`."""
        if self.phase is Phase.CLOSED:
            self.assembly.late_items += 1
            return NOTHING
        before = len(self.assembly.ids)
        usable = self.assembly.take(item)
        for each in usable:
            self._note(each, sent_ms)
        if self._delivery is None:
            return NOTHING
        return self._deliver(self._delivery, before, now) if usable else NOTHING

    def _set_wake(self) -> None:
        self.wake_ms = min(self._deadline_ms, self._alone_until_ms)

    def _note(self, item: TokenItem, sent_ms: float) -> None:
        self._accelerator_us[item.attempt] = item.accelerator_us
        self.cached_tokens = item.cached_tokens
        self.moments.frame(item.started_ms, sent_ms)
        if item.finish in ENDS:
            self._final = item

    def _deliver(self, delivery: Delivery, start: int, now: float) -> Step:
        self.phase = Phase.STREAMING
        delivery.push(self.assembly.ids[start:])
        self.tokens = delivery.tokens
        if delivery.stopped:
            return self.finish(End(FinishReason.STOP, running=self._final is None), now)
        if self._final is not None:
            return self.finish(_executor_end(self._final), now)
        return Step(self._cut(delivery, now))

    def _cut(self, delivery: Delivery, now: float) -> ChunkOut | None:
        chunk = delivery.cut()
        if chunk is not None:
            self.moments.chunk(delivery.tokens, now)
        return chunk

    def drop(self) -> bool:
        """Close without a word, as if it had never been opened; False = too late for that."""
        if self.phase is Phase.OPENING:
            self.phase = Phase.CLOSED
            return True
        return False

    def detach(self, until_ms: float, first_unsent: int | None) -> None:
        """Its client is gone; it goes on and collects tokens until then."""
        self._alone_until_ms = until_ms
        self._reached = self.tokens if first_unsent is None else min(self.tokens, first_unsent)
        self._set_wake()

    def attach(self, delivery: Delivery, now: float) -> ChunkOut | None:
        """A client goes on with this delivery, which lacks the newest tokens; they come now."""
        self._alone_until_ms, self._reached = math.inf, None
        self._set_wake()
        self._delivery = delivery
        delivery.push(self.assembly.ids[delivery.tokens :])
        self.tokens = delivery.tokens
        return self._cut(delivery, now)

    def restore(self, known: Progress, now: float) -> Step:
        """Go on from what another egress had. Only once settled."""
        assert self._delivery is not None
        self._accelerator_us = known.accelerator_us | self._accelerator_us
        before = len(self.assembly.ids)
        longer = self.assembly.restore(known.ids, known.attempt, known.fingerprints)
        return self._deliver(self._delivery, before, now) if longer else NOTHING

    def hand_over(self) -> Progress:
        """Close without a word: another egress goes on with it."""
        progress = self.progress()
        if self.phase in (Phase.ACCEPTED, Phase.STREAMING):
            self.phase = Phase.CLOSED
        return progress

    def refuse(self, error: ErrorInfo, now: float) -> Step:
        """Not admitted; or, when it was before, it cannot go on."""
        if self.phase is not Phase.OPENING:
            return self.fail(error, now)
        # After an unclear outcome it may be stored all the same: then queueing closes it.
        unclear = error.code in (ErrorCode.DEADLINE_EXCEEDED, ErrorCode.INTERNAL)
        return self._close(End(FinishReason.ERROR, error, running=False, orphan=unclear), now)

    def finish(self, end: End, now: float) -> Step:
        """End with all text that is left. While it is opening, a session ends only once settled."""
        if self.phase is Phase.CLOSED:
            return NOTHING
        if self.phase is Phase.OPENING and not end.orphan:
            self._wanted = self._wanted or end
            return NOTHING
        return self._close(end, now)

    def _close(self, end: End, now: float) -> Step:
        self.phase, self.end = Phase.CLOSED, end
        self.moments.finished = now
        if self._delivery is None:
            return Step(None, end)
        self._delivery.flush()
        return Step(self._cut(self._delivery, now), end)

    def fail(self, error: ErrorInfo, now: float) -> Step:
        """The request cannot go on."""
        late = error.code is ErrorCode.DEADLINE_EXCEEDED
        return self.finish(End(FinishReason.TIMEOUT if late else FinishReason.ERROR, error), now)

    def leave(self, reason: FinishReason, first_unsent: int | None, now: float) -> Step:
        """The client is gone or too slow; tokens from offset `first_unsent` did not reach it."""
        step = self.finish(End(reason), now)
        offsets = [first_unsent, step.chunk.offset if step.chunk is not None else None]
        if step.end is not None:
            self.tokens = min([self.tokens, *(each for each in offsets if each is not None)])
        return Step(None, step.end)

    def tick(self, now: float) -> Step:
        """Time has passed: was it never settled, is the deadline over, did no client come back?"""
        if self.phase is Phase.CLOSED or now < self.wake_ms:
            return NOTHING
        if self.phase is Phase.OPENING:
            text = f"the request was not admitted in {UNSETTLED_MS / 1000:.0f} s; try again"
            return self.finish(End(FinishReason.ERROR, _internal(text), orphan=True), now)
        if now >= self._deadline_ms:
            text = f"the deadline passed after {self.tokens} tokens; allow more time"
            return self.fail(ErrorInfo(code=ErrorCode.DEADLINE_EXCEEDED, message=text), now)
        step = self.finish(End(FinishReason.CANCELLED), now)
        if self._reached is not None:
            self.tokens = min(self.tokens, self._reached)  # nobody got more
        return step

    def progress(self) -> Progress:
        """What queueing needs to lease the request again."""
        return Progress(
            request_id=self.request_id,
            open=self.phase is not Phase.CLOSED,
            attempt=self.assembly.attempt,
            ids=self.assembly.ids,
            fingerprints=self.assembly.fingerprints,
            accelerator_us=self._accelerator_us,
        )


def _internal(message: str) -> ErrorInfo:
    return ErrorInfo(code=ErrorCode.INTERNAL, message=message, retry_after_s=1.0)


def _executor_end(item: TokenItem) -> End:
    reason = FinishReason(item.finish or "error")
    failed = reason is FinishReason.ERROR
    error = _internal(item.error or "the executor failed") if failed else None
    return End(reason, error, running=False)
