"""Ending a pipeline from outside, whatever state it is in: `headrace down`, Ctrl-C in `headrace up`."""

import asyncio
import signal
import time
from dataclasses import dataclass
from typing import Final

from stages.control.leftovers import end_leftovers
from stages.control.order import STOP_S
from stages.control.process import KILL_S, Identity
from stages.control.state import StateFolder

_WAIT_S: Final = STOP_S + 10.0  # each phase may settle for 2.5 s when the bus is gone
_CLEAN_S: Final = 30.0
_LOOK_S: Final = 0.05


@dataclass(frozen=True)
class Ended:
    """What became of it."""

    was_running: bool
    clean: bool  # control and watchdog ended by themselves
    left_over: int  # processes that were ended without control
    still: Identity | None = None  # a control or watchdog that even SIGKILL did not end


def end_pipeline(folder: StateFolder) -> Ended:
    """Return when nothing runs here any more; asks each of control and watchdog just once.

    Raises `CannotEndError` for processes that even SIGKILL does not end.
    """
    if not folder.root.exists():
        return Ended(was_running=False, clean=True, left_over=0)
    asked = _ask(folder, _WAIT_S)
    clean = not _looking_after(folder)
    if not clean:
        for one in _looking_after(folder):  # the watchdog first: it would start control again
            one.send(signal.SIGKILL)
        _ask(folder, KILL_S)
    still = _looking_after(folder)
    if still:
        return Ended(True, False, 0, still[0])
    return Ended(bool(asked), clean, _clean_up(folder))


def _looking_after(folder: StateFolder) -> list[Identity]:
    found = (folder.holder("watchdog"), folder.holder("control"))
    return [one for one in found if one is not None]


def _ask(folder: StateFolder, limit_s: float) -> set[Identity]:
    """SIGTERM to whoever looks after the pipeline, also to one that comes meanwhile; wait for all."""
    asked: set[Identity] = set()
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        alive = _looking_after(folder)
        for one in alive:
            if one not in asked:
                one.send(signal.SIGTERM)
                asked.add(one)
        if not alive and folder.holder("up") is None:  # none that is just about to start one
            break
        time.sleep(_LOOK_S)
    return asked


def _clean_up(folder: StateFolder) -> int:
    """End what is left, in control's place: while we hold its lock, no other one comes."""
    deadline = time.monotonic() + _CLEAN_S
    while (lock := folder.lock(sign=False)) is None:
        if folder.holder("control") is not None or time.monotonic() > deadline:
            return 0  # somebody has started it again since
        time.sleep(_LOOK_S)
    with lock:
        ended = asyncio.run(end_leftovers(folder))
        folder.clear()
    return ended
