"""Sessions that ended lately, so that late questions are answered right."""

from collections import OrderedDict
from typing import Final, NamedTuple

from contracts.client import FinishReason
from contracts.sessions import Progress
from stages.runtime.streams import KEPT_S

KEEP_MS: Final = 60_000.0
RECORDS_BYTES: Final = 32 << 20


class Known(NamedTuple):
    """A session that is not here any more."""

    since: float
    tenant: str | None
    progress: Progress
    moved: bool  # to another egress, where it may still be open


class Closed:
    """Remembers ids, tenants and progress for 60 s (token ids are dropped), and the newest records
    of finished answers (32 MB) in case the stream of records loses them."""

    def __init__(self, records_bytes: int = RECORDS_BYTES) -> None:
        self._known: OrderedDict[str, Known] = OrderedDict()
        self._records: OrderedDict[str, tuple[float, bytes]] = OrderedDict()
        self._most = records_bytes
        self._held = 0

    def add(
        self,
        request_id: str,
        tenant: str | None,
        attempt: int,
        now: float,
        *,
        moved: bool = False,
    ) -> None:
        """A session ended now, or goes on at another egress; older ones than 60 s are forgotten."""
        progress = Progress(request_id=request_id, open=False, attempt=attempt, ids=[])
        self._known.pop(request_id, None)
        self._known[request_id] = Known(now, tenant, progress, moved)
        while self._known and next(iter(self._known.values())).since < now - KEEP_MS:
            self._known.popitem(last=False)

    def keep(self, request_id: str, record: bytes, now: float) -> None:
        """The record of a session that has ended now."""
        _, older = self._records.pop(request_id, (now, b""))
        self._held -= len(older)
        self._records[request_id] = (now, record)
        self._held += len(record)
        while self._records and self._stale(next(iter(self._records.values()))[0], now):
            _, (_, old) = self._records.popitem(last=False)
            self._held -= len(old)

    def _stale(self, since: float, now: float) -> bool:
        return self._held > self._most or since < now - 1000 * KEPT_S

    def record(self, request_id: str) -> bytes | None:
        """Of a session that ended here."""
        known = self._records.get(request_id)
        return known[1] if known is not None else None

    def records(self) -> list[tuple[str, bytes]]:
        """All that are still here."""
        return [(request_id, record) for request_id, (_, record) in self._records.items()]

    def forget(self, request_id: str) -> None:
        """It goes on here: another egress had taken it over meanwhile."""
        self._known.pop(request_id, None)

    def billed(self, request_id: str, reason: FinishReason, now: float) -> None:
        """Its receipt is stored: queueing, should it have missed it, can count the end."""
        known = self._known.pop(request_id, None)
        if known is not None:
            progress = known.progress.model_copy(update={"finish_reason": reason})
            # the last one again: order of time
            self._known[request_id] = known._replace(since=now, progress=progress)

    def owned(self, request_id: str, tenant: str) -> bool:
        """Whether this tenant's session is remembered."""
        known = self._known.get(request_id)
        return known is not None and known.tenant == tenant

    def progress(self, request_id: str) -> Progress | None:
        """As it was when it was closed here; None = never heard of it."""
        known = self._known.get(request_id)
        return known.progress if known is not None else None

    def told(self, request_id: str) -> Progress | None:
        """What queueing is told: nothing of one that moved, or it would wait for an end from here
        instead of asking the others where it is."""
        known = self._known.get(request_id)
        return known.progress if known is not None and not known.moved else None
