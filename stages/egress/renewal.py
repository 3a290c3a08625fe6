"""After the bus was away: records are written again, and lost frames are asked for.

Streams in memory are empty after a restart of nats-server until they are made again, and what was
sent meanwhile never came; the last frame of a request would leave not even a gap.
"""

from typing import Final

from stages.egress.session import Phase
from stages.egress.sessions import Sessions
from stages.runtime.bus import Bus

# Seconds after our connection came back: the streams and the executors' connections may come later.
AGAIN_S: Final = (0.0, 1.0, 3.0, 8.0)


class Renewal:
    """Looks at the connection now and then."""

    def __init__(self, bus: Bus, sessions: Sessions) -> None:
        self._bus = bus
        self._sessions = sessions
        self._done = len(AGAIN_S)  # how many of the times of the present connection are over

    async def look(self) -> None:
        """Do what is due."""
        held_s = self._bus.connected_for_s()
        if held_s < AGAIN_S[min(self._done, len(AGAIN_S)) - 1] or not held_s:
            self._done = 0  # another connection since the last look
        if self._done == len(AGAIN_S) or held_s < AGAIN_S[self._done] or not held_s:
            return
        self._done += 1
        await self._write()
        self._ask()

    async def _write(self) -> None:
        records = self._sessions.ending.records
        for request_id, record in self._sessions.closed.records():
            await records.write(request_id, record)
        for live in self._sessions.all():
            if live.session.terms is not None:
                await records.begun(live.session.terms)

    def _ask(self) -> None:
        for live in self._sessions.all():
            if live.executor is not None and live.session.phase is not Phase.CLOSED:
                self._sessions.mend(live, take_over=True)
