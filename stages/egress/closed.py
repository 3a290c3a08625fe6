"""Sessions that ended lately, so that late questions are answered right."""

from collections import OrderedDict
from typing import Final

from contracts.client import FinishReason
from contracts.internal import Progress

KEEP_MS: Final = 60_000.0


class Closed:
    """Remembers ids, tenants and progress for 60 s (token ids are dropped)."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, tuple[float, str | None, Progress]] = OrderedDict()

    def add(self, request_id: str, tenant: str | None, attempt: int, now: float) -> None:
        """A session ended now; older ones than 60 s are forgotten."""
        progress = Progress(request_id=request_id, open=False, attempt=attempt, ids=[])
        self._known[request_id] = (now, tenant, progress)
        while self._known and next(iter(self._known.values()))[0] < now - KEEP_MS:
            self._known.popitem(last=False)

    def billed(self, request_id: str, reason: FinishReason, now: float) -> None:
        """Its receipt is stored: queueing, should it have missed it, can count the end."""
        known = self._known.pop(request_id, None)
        if known is not None:
            progress = known[2].model_copy(update={"finish_reason": reason})
            self._known[request_id] = (now, known[1], progress)  # the last one again: order of time

    def owned(self, request_id: str, tenant: str) -> bool:
        """Whether this tenant's session is remembered."""
        known = self._known.get(request_id)
        return known is not None and known[1] == tenant

    def progress(self, request_id: str) -> Progress | None:
        """What queueing is told; None = never heard of it."""
        known = self._known.get(request_id)
        return known[2] if known is not None else None
