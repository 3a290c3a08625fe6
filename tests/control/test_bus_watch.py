"""A nats-server that lives but does not answer."""

import os
import signal
from pathlib import Path

import pytest

from stages.control.bus_watch import HUNG_S, PACE_S, Deafness
from tests.control.test_control import make_control
from tests.support.waiting import eventually


def test_it_is_hung_after_ten_silent_seconds_unless_we_were_late_ourselves() -> None:
    deaf = Deafness(0.0)
    assert not any(deaf.hung(at, heard=False) for at in (2.0, 4.0, 6.0, 8.0))
    assert deaf.hung(HUNG_S, heard=False)
    late = Deafness(0.0)
    assert not late.hung(PACE_S + 5, heard=False), "we did not look for that long"
    assert not late.hung(PACE_S + 5 + HUNG_S - 4, heard=True)
    assert not late.hung(PACE_S + 5 + HUNG_S, heard=False)


@pytest.mark.slow
# nats-py drops sockets on which a stopped server never said a word
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_a_hung_nats_server_is_killed_and_started_again(tmp_path: Path) -> None:
    control = make_control(tmp_path)
    await control.start()
    try:
        before = control.status().bus
        assert before.pid is not None
        os.kill(before.pid, signal.SIGSTOP)
        await eventually(lambda: control.status().bus.restarts == 1, 90)
        await eventually(lambda: control.status().bus.phase == "ready", 60)
        assert "no answer for 10 s" in (control.status().bus.last_error or "")
        await eventually(lambda: not control.status().problems, 90)
    finally:
        await control.stop()
