"""Attempts that nobody else can close: their executor is gone. Closed once, from its last report."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from nats.aio.msg import Msg

from contracts import subjects
from contracts.internal import Work
from contracts.topology import Topology
from contracts.usage import AttemptEvent, AttemptReport, Price
from stages.runtime.sender import DurableSender

KEEP_S: Final = 3600.0  # as long as the longest deadline: a report is repeated each second
SILENT_S: Final = 4.0  # its own row may still be on the way
CLOSED_S: Final = 60.0  # reports that were sent before the row
KEEP_MAX: Final = 100_000  # attempts

Run = tuple[str, int]  # request, attempt


@dataclass(frozen=True, slots=True)
class _Seen:
    event: AttemptEvent
    sent_ms: float
    heard_s: float


class Reports:
    """The last word about each attempt that may still have to be closed. Pure.

    Every replica hears reports and rows, so whoever owns a pool knows them.
    """

    def __init__(self) -> None:
        self._open: dict[Run, _Seen] = {}  # the longest unheard first
        self._closed: dict[Run, float] = {}  # they have a row; since when, the oldest first

    def __len__(self) -> int:
        return len(self._open) + len(self._closed)

    def hear(self, report: AttemptReport, now_s: float) -> None:
        """An executor tells what its attempts have taken so far; older words change nothing."""
        for event in report.attempts:
            run = event.request_id, event.attempt
            known = self._open.pop(run, None)
            if run in self._closed:
                continue
            if known is None or known.sent_ms <= report.sent_ms:
                known = _Seen(event, report.sent_ms, now_s)
            self._open[run] = known
        while self._open and now_s - next(iter(self._open.values())).heard_s > KEEP_S:
            del self._open[next(iter(self._open))]
        _cut(self._open)

    def closed(self, request_id: str, attempt: int, now_s: float) -> None:
        """It has a row, the executor's own or a `lost` one: later reports do not bring it back."""
        self._open.pop((request_id, attempt), None)
        self._closed[request_id, attempt] = now_s
        while now_s - next(iter(self._closed.values())) > CLOSED_S:
            del self._closed[next(iter(self._closed))]
        _cut(self._closed)

    def is_closed(self, request_id: str, attempt: int) -> bool:
        """Whether it has a row."""
        return (request_id, attempt) in self._closed

    def last(self, request_id: str, attempt: int) -> AttemptEvent | None:
        """What it had taken when its executor last reported; None = no report came yet."""
        seen = self._open.get((request_id, attempt))
        return seen.event if seen is not None else None

    def orphans(self, pool: str, lives: Callable[[str], bool], now_s: float) -> list[AttemptEvent]:
        """The last reports of attempts that have no row and whose executor does not live."""
        return [
            seen.event
            for seen in self._open.values()
            if seen.event.pool == pool
            and now_s - seen.heard_s > SILENT_S
            and not lives(seen.event.executor)
        ]


def _cut(known: dict[Run, Any]) -> None:
    while len(known) > KEEP_MAX:
        del known[next(iter(known))]


class Attempts:
    """Hears reports and rows, stores `lost` rows. Their key makes repeats harmless.

    A row of the executor that comes all the same counts more: views prefer it.
    """

    def __init__(
        self,
        sender: DurableSender,
        topology: Topology,
        generation: int,
        now_s: Callable[[], float],
        now_ms: Callable[[], float],
    ) -> None:
        self.reports = Reports()
        self._sender = sender
        self._now_s, self._now_ms = now_s, now_ms
        self.reconfigure(topology, generation)

    def reconfigure(self, topology: Topology, generation: int) -> None:
        """Prices of `topology` from now on."""
        self._topology, self._generation = topology, generation

    def on_report(self, msg: Msg) -> None:
        """`hr.attempts.<pool>`."""
        self.reports.hear(AttemptReport.model_validate_json(msg.data), self._now_s())

    def on_row(self, msg: Msg) -> None:
        """`hr.usage.attempt.<pool>`, read beside the stream: the attempt ended in order."""
        row = AttemptEvent.model_validate_json(msg.data)
        self.reports.closed(row.request_id, row.attempt, self._now_s())

    def lost(
        self,
        work: Work,
        prompt_tokens: int,
        attempt: int,
        executor: str | None,
        epoch: int = 0,
        leased_ms: float | None = None,
    ) -> None:
        """The executor of this attempt is gone, or never answered: close it, unless it is closed.

        Without a report (it lived less than a second) the row has zeros, if its executor is known.
        """
        if attempt < 1 or self.reports.is_closed(work.request_id, attempt):
            return
        row = self.reports.last(work.request_id, attempt)
        if row is None:
            if executor is None:
                return
            row = self._zeros(work, prompt_tokens, attempt, executor, epoch, leased_ms)
        self._close(row)

    def sweep(self, pool: str, lives: Callable[[str], bool]) -> None:
        """Close what was reported by executors that are gone and that no request names any more: it
        was lost under an owner before us, or its request ended before we noticed."""
        for row in self.reports.orphans(pool, lives, self._now_s()):
            self._close(row)

    async def drain(self, timeout_s: float) -> bool:
        """Wait until every row is stored."""
        return await self._sender.drain(timeout_s)

    def _close(self, row: AttemptEvent) -> None:
        self.reports.closed(row.request_id, row.attempt, self._now_s())
        self._sender.put(subjects.usage("attempt", row.pool), row, row.key)

    def _zeros(
        self,
        work: Work,
        prompt_tokens: int,
        attempt: int,
        executor: str,
        epoch: int,
        leased_ms: float | None,
    ) -> AttemptEvent:
        decision = work.decision()
        section = self._topology.pools.get(decision.pool)
        hour = section.price.accelerator_hour if section is not None else 0.0
        now_ms = self._now_ms()
        return AttemptEvent(
            request_id=work.request_id,
            attempt=attempt,
            tenant=work.tenant,
            pool=decision.pool,
            model=decision.model,
            executor=executor,
            generation=self._generation,
            finish="lost",
            prompt_tokens=prompt_tokens,
            cached_tokens=0,
            computed_tokens=0,
            completion_tokens=0,
            accelerator_s=0.0,
            started_ms=leased_ms or now_ms,
            finished_ms=now_ms,
            price=Price(accelerator_hour=hour, currency=self._topology.currency),
            zone=section.zone if section is not None else "",
            epoch=epoch,
        )
