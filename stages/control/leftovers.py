"""What a control that was killed left running: found by pid and start time, and ended."""

import logging

from stages.control.order import BUS
from stages.control.process import end_all
from stages.control.state import StateFolder

_GRACE_S = 5.0

log = logging.getLogger("headrace.control")


async def end_leftovers(folder: StateFolder) -> int:
    """End the processes of an earlier run, nats-server last; returns how many there were."""
    state = folder.read()
    left = state.leftovers() if state else []
    for group in (
        [one for one in left if one.stage != BUS],
        [one for one in left if one.stage == BUS],
    ):
        if group:
            log.warning("ending what was left running: %s", ", ".join(p.instance for p in group))
        await end_all([one.identity for one in group], _GRACE_S)
    return len(left)
