"""What a control that was killed left running, and nobody takes over: ended."""

import logging
from collections.abc import Sequence

from stages.control.adoption import find
from stages.control.order import BUS
from stages.control.process import KILL_S, end_all
from stages.control.state import ProcessRecord, StateFolder

_GRACE_S = 5.0

log = logging.getLogger("headrace.control")


class CannotEndError(RuntimeError):
    """Processes that even SIGKILL does not end; the message names them."""

    def __init__(self, left: Sequence[ProcessRecord]) -> None:
        names = ", ".join(f"{one.instance} (pid {one.identity.pid})" for one in left)
        super().__init__(
            f"{names} did not end {KILL_S:.0f} s after SIGKILL; the kernel holds them "
            "(`ps -o pid,stat,wchan` says where); try again when it has let them go"
        )


async def end_leftovers(folder: StateFolder) -> int:
    """End the processes of an earlier run, nats-server last; returns how many there were.

    Raises `CannotEndError` when some are still there in spite of SIGKILL.
    """
    left = find(folder).living
    await end_records([one for one in left if one.stage != BUS])
    await end_records([one for one in left if one.stage == BUS])
    return len(left)


async def end_records(group: Sequence[ProcessRecord]) -> None:
    """End these together. Raises `CannotEndError`."""
    if not group:
        return
    log.warning("ending what was left running: %s", ", ".join(one.instance for one in group))
    still = await end_all([one.identity for one in group], _GRACE_S)
    if still:
        raise CannotEndError([one for one in group if one.identity in still])
