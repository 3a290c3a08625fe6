"""Other egress processes, by their beats: whether a client that is sent away finds one."""

import time
from collections.abc import Callable
from typing import Final

from nats.aio.msg import Msg

from contracts import subjects
from contracts.internal import Beat
from stages.runtime.bus import Bus

FRESH_S: Final = 1.5  # three beats


class Neighbours:
    """Those that take sessions. `clock_s` is monotonic."""

    def __init__(self, egress: str, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._egress = egress
        self._clock_s = clock_s
        self._ready_s: dict[str, float] = {}

    async def start(self, bus: Bus) -> None:
        """Listen to beats."""
        await bus.listen(subjects.beat("egress", "*"), self._on_beat)

    def _on_beat(self, msg: Msg) -> None:
        self.hear(Beat.model_validate_json(msg.data))

    def hear(self, beat: Beat) -> None:
        """A beat came."""
        if beat.ready and not beat.draining and beat.incarnation != self._egress:
            self._ready_s[beat.incarnation] = self._clock_s()
        else:
            self._ready_s.pop(beat.incarnation, None)

    def any(self) -> bool:
        """Whether one takes sessions now."""
        return any(self._clock_s() - heard < FRESH_S for heard in self._ready_s.values())
