"""What others ask of the sessions here: queueing, control, the tenant itself by `cancel`."""

import math
from collections.abc import Callable
from typing import Final

from contracts.client import FinishReason, Queued
from contracts.errors import ErrorCode, ErrorInfo, HeadraceError
from contracts.sessions import Progress
from stages.egress.output import End
from stages.egress.session import Phase
from stages.egress.sessions import Sessions
from stages.egress.sink import Nobody
from stages.runtime.clock import now_ms

REVOKED: Final = ErrorInfo(
    code=ErrorCode.UNAUTHENTICATED, message="the API key was revoked, or its time is over"
)


class Orders:
    """Carries them out."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions
        self._epochs: dict[str, int] = {}  # highest known, by pool

    async def cancel(self, request_id: str, tenant: str) -> bool:
        """On behalf of `tenant`; False = it had ended already. A foreign id is not found."""
        live = self._sessions.find(request_id)
        if live is not None and live.session.tenant == tenant:
            end = End(FinishReason.CANCELLED)
            await self._sessions.apply(live, live.session.finish(end, now_ms()))
            return True
        if live is None and self._sessions.closed.owned(request_id, tenant):
            return False
        raise HeadraceError(ErrorCode.NOT_FOUND, f"no running request {request_id!r}")

    async def fail(
        self, request_id: str, error: ErrorInfo, pool: str | None = None, epoch: int = 0
    ) -> bool:
        """End an accepted request as an error; False when it is not open.

        Raises conflict for the word of a queueing owner that has been replaced.
        """
        if pool is not None and epoch:
            known = self._epochs.get(pool, 0)
            if epoch < known:
                text = f"epoch {epoch} of pool {pool!r} is over: {known} is known"
                raise HeadraceError(ErrorCode.CONFLICT, text)
            self._epochs[pool] = epoch
        live = self._sessions.find(request_id)
        if live is None:
            return False
        await self._sessions.apply(live, live.session.fail(error, now_ms()))
        return True

    async def position(self, positions: dict[str, int]) -> None:
        """Heartbeats for those that wait."""
        for request_id, position in positions.items():
            live = self._sessions.find(request_id)
            if live is not None and live.session.phase is Phase.ACCEPTED:
                live.position = position
                await live.sink.send(Queued(position=position))

    def progress(self, request_ids: list[str]) -> list[Progress]:
        """What is known of these requests; unknown ones are left out."""
        found = (
            live.session.progress()
            if (live := self._sessions.find(request_id)) is not None
            else self._sessions.closed.told(request_id)
            for request_id in request_ids
        )
        return [progress for progress in found if progress is not None]

    async def revoke(self, valid: Callable[[str, str], bool]) -> None:
        """End what was called with a key (tenant, key id) that counts no more."""
        for live in self._sessions.all():
            work = live.session.terms.work if live.session.terms is not None else None
            if work is None or work.key_id is None or valid(work.tenant, work.key_id):
                continue
            end = End(FinishReason.CANCELLED, REVOKED)
            await self._sessions.apply(live, live.session.finish(end, now_ms()))

    def send_away(self, error: ErrorInfo, *, waiting_only: bool = False) -> None:
        """Clients resume elsewhere: their streams end, their sessions stay until they are taken."""
        for live in self._sessions.all():
            begun = live.session.moments.started is not None
            if live.session.phase is Phase.OPENING or (waiting_only and begun):
                continue
            sink, live.sink = live.sink, Nobody()
            live.session.detach(math.inf, None)
            self._sessions.leave(sink)
            sink.cut_off(error)

    async def end_all(self, error: ErrorInfo, *, waiting_only: bool = False) -> None:
        """The drain time is over: for all, or for those that no executor has begun to answer."""
        for live in self._sessions.all():
            if waiting_only and live.session.moments.started is not None:
                continue
            orphan = live.session.phase is Phase.OPENING
            end = End(FinishReason.ERROR, error, orphan=orphan)
            await self._sessions.apply(live, live.session.finish(end, now_ms()))
