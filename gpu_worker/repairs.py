"""Tokens again: what an attempt has made so far, for an egress that missed some or takes it over."""

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from contracts.errors import ErrorCode, HeadraceError
from contracts.sessions import RepairCall, RepairReply
from gpu_worker.roster import Held, Roster

KEPT_S: Final = 30.0  # after an attempt's end
KEPT_TOKENS: Final = 1_000_000  # of all ended attempts together; the oldest go first
KEPT_ATTEMPTS: Final = 4096
_ENDS: Final = ("stop", "length", "error")  # others go on elsewhere, or nobody waits for them


@dataclass(frozen=True)
class Ended:
    """An attempt that is over: what can still be asked of it, not its prompt."""

    reply: RepairReply  # from offset 0
    at_s: float  # monotonic


class Repairs:
    """Answers repair calls about what runs here and what ended here a short while ago."""

    def __init__(self, roster: Roster, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._roster = roster
        self.fingerprint = ""  # of this executor, once it has loaded
        self._clock_s = clock_s
        self._ended: OrderedDict[str, Ended] = OrderedDict()  # by request, oldest first
        self._tokens = 0

    def keep(self, held: Held, finish: str, error: str | None = None) -> None:
        """An attempt has ended: its tokens stay for a while."""
        request_id = held.lease.work.request_id
        older = self._ended.get(request_id)
        if older is not None and older.reply.attempt > held.lease.attempt:
            return
        self._drop(request_id)
        reply = self._reply(held, 0, finish, error)
        self._ended[request_id] = Ended(reply, self._clock_s())
        self._tokens += len(held.ids)
        self._tidy()

    def answer(self, call: RepairCall) -> RepairReply:
        """All tokens from `call.offset`; later ones go to `call.egress`.

        Booking a step and this are both done between two awaits of one loop: a token is either in
        the answer or in a frame to the new egress. Raises `HeadraceError(not_found)`.
        """
        self._tidy()
        running = self._roster.attempts_of(call.request_id)
        newest = max(running, key=_attempt, default=None)
        ended = self._ended.get(call.request_id)
        if newest is not None and (ended is None or _attempt(newest) > ended.reply.attempt):
            if call.egress is not None:
                newest.egress = call.egress
            return self._reply(newest, call.offset)
        if ended is None:
            raise HeadraceError(
                ErrorCode.NOT_FOUND,
                f"request {call.request_id} neither runs here nor ended here in the last "
                f"{KEPT_S:g} s",
            )
        ids = ended.reply.ids[call.offset :]
        return ended.reply.model_copy(update={"offset": call.offset, "ids": ids})

    def _reply(
        self, held: Held, offset: int, finish: str | None = None, error: str | None = None
    ) -> RepairReply:
        return RepairReply(
            request_id=held.lease.work.request_id,
            attempt=_attempt(held),
            offset=offset,
            ids=held.ids[offset:],
            accelerator_us=held.busy_us,
            cached_tokens=held.cached,
            started_ms=held.started_ms,
            finish=finish if finish in _ENDS else None,
            error=error,
            fingerprint=self.fingerprint,
        )

    def _tidy(self) -> None:
        now = self._clock_s()
        while self._ended:
            oldest = next(iter(self._ended.values()))
            crowded = len(self._ended) > KEPT_ATTEMPTS or self._tokens > KEPT_TOKENS
            if not crowded and now - oldest.at_s <= KEPT_S:
                return
            self._drop(oldest.reply.request_id)

    def _drop(self, request_id: str) -> None:
        ended = self._ended.pop(request_id, None)
        if ended is not None:
            self._tokens -= len(ended.reply.ids)


def _attempt(held: Held) -> int:
    return held.lease.attempt
