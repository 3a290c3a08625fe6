"""What the sessions of one HTTP call have to say, in the order in which they said it."""

import asyncio
from collections import deque
from collections.abc import Sequence
from itertools import islice
from typing import Final

from contracts.client import Accepted, Complete, Queued, Refused
from contracts.errors import ErrorInfo
from stages.egress.output import ChunkOut

Said = ChunkOut | Queued | Complete | ErrorInfo


class Inbox:
    """Filled by sinks, emptied by the call's own handler."""

    def __init__(self) -> None:
        self.accepted: dict[int, Accepted] = {}  # by choice
        self.refused: ErrorInfo | None = None
        self.left = False  # the client has gone: nobody reads any more
        self._waiting: deque[tuple[HttpSink, Said]] = deque()
        self._changed = asyncio.Event()

    def changed(self) -> None:
        """Wake the handler."""
        self._changed.set()

    def put(self, sink: "HttpSink", message: Said) -> None:
        """Queue something for the client."""
        self._waiting.append((sink, message))
        self.changed()

    def leave(self) -> None:
        """The client has gone."""
        self.left = True
        self.changed()

    async def admission(self, choices: int) -> None:
        """Wait until all sessions are accepted, one is refused or the client has left.

        A session ends by itself when it is not settled, so this wait has an end.
        """
        while not self.left and self.refused is None and len(self.accepted) < choices:
            self._changed.clear()
            await self._changed.wait()

    async def next(self, seen: int = 0) -> Sequence[tuple[int, Said]]:
        """What waits after the first `seen`, at least one (choice, message); nothing once the client
        has left.

        It goes on waiting here, so that it is not billed, until `written` says that it was sent.
        """
        while not self.left and len(self._waiting) <= seen:
            self._changed.clear()
            await self._changed.wait()
        fresh = islice(self._waiting, seen, None)
        return [] if self.left else [(sink.choice, said) for sink, said in fresh]

    def written(self, count: int) -> None:
        """The first `count` messages have been handed to the client's connection."""
        for _ in range(count):
            sink, _said = self._waiting.popleft()
            sink.waiting -= 1

    def first_unsent(self, sink: "HttpSink") -> int | None:
        """Offset of the first chunk of one sink that is still here."""
        for each, said in self._waiting:
            if each is sink and isinstance(said, ChunkOut):
                return said.offset
        return None


class HttpSink:
    """One answer's end of the line: `limit` messages may wait, one more and it is given up."""

    def __init__(self, inbox: Inbox, choice: int, limit: int) -> None:
        self.choice: Final = choice
        self.waiting = 0
        self._inbox = inbox
        self._limit = limit

    async def send(self, message: Accepted | Queued | Complete | Refused) -> None:
        """Queue a message; these few are never too many."""
        match message:
            case Accepted():
                self._inbox.accepted[self.choice] = message
                self._inbox.changed()
            case Refused():
                self._inbox.refused = self._inbox.refused or message.error
                self._inbox.changed()
            case _:
                self.waiting += 1
                self._inbox.put(self, message)

    async def chunk(self, chunk: ChunkOut) -> bool:
        """Queue text; False when the client is too far behind."""
        self.waiting += 1
        self._inbox.put(self, chunk)
        return self.waiting <= self._limit

    def first_unsent(self) -> int | None:
        """Offset of the first chunk that the connection has not taken."""
        return self._inbox.first_unsent(self)

    def cut_off(self, error: ErrorInfo) -> None:
        """Nothing more comes here, and no terminal: somebody else reads on, or we were too slow."""
        self.waiting += 1
        self._inbox.put(self, error)
