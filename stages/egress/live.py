"""An open session with what this process adds to it: its client, its alarm, its executor."""

import asyncio
from dataclasses import dataclass

from stages.egress.session import Session
from stages.egress.sink import Sink


@dataclass(slots=True, eq=False)
class Live:
    """An open session, its client and its alarm."""

    session: Session
    sink: Sink
    alarm: asyncio.TimerHandle | None = None
    alarm_ms: float = float("inf")
    since_ms: float = 0.0  # when the call of its client came in
    position: int = 0  # in its pool's queue, as last heard
    executor: str | None = None  # that runs its highest attempt, as far as is known
    recorded_at: str | None = None  # egress whose frames in HR_TOK are its own; None = this one's
    mending: bool = False
    take_over: bool = False  # its executor must be told that its frames go to us


@dataclass(frozen=True)
class Wish:
    """A client wants to go on with a request after `offset` tokens; its call came in at `since_ms`."""

    request_id: str
    tenant: str
    offset: int
    sink: Sink
    since_ms: float
