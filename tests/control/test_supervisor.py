"""Supervision of real processes: readiness, restart, crash loop, stop."""

import asyncio
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from stages.control.backoff import Backoff
from stages.control.process import Child, end_all
from stages.control.supervisor import Change, Life, Supervised
from stages.runtime.clock import now_ms

SLEEPS = "import time; print('up', flush=True); time.sleep(60)"
STUBBORN = "import signal, time; signal.signal(15, lambda *_: print('no')); print('up', flush=True); time.sleep(60)"


class Script:
    """A launcher of `python -c`; ready once `up` is in its log."""

    def __init__(self, code: str, log: Path) -> None:
        self.code = code
        self.log = log
        self.lives: list[Life] = []
        self.codes: list[int] = []

    def next_life(self) -> Life:
        name = f"script-{len(self.lives)}"
        self.lives.append(Life(name, [sys.executable, "-c", self.code], {}, now_ms(), self._ready))
        return self.lives[-1]

    async def _ready(self) -> None:
        while not self.log.exists() or b"up" not in self.log.read_bytes():
            await asyncio.sleep(0.01)

    async def ended(self, life: Life, code: int) -> None:
        self.codes.append(code)


Make = Callable[[str], tuple[Supervised, Script]]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """A supervised script, not started yet."""

    def build(code: str) -> tuple[Supervised, Script]:
        log = tmp_path / "logs" / "script.log"
        script = Script(code, log)
        one = Supervised(
            stage="s",
            instance="script",
            launcher=script,
            log_file=log,
            gate=asyncio.Semaphore(2),
            on_change=changes.append,
            on_pid=lambda: None,
            backoff=Backoff(time.monotonic),
        )
        return one, script

    changes: list[Change] = []
    return build


async def within(seconds: float, what: Awaitable[object]) -> None:
    """Wait, not for ever."""
    await asyncio.wait_for(what, seconds)


async def until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    """Poll until it holds."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.01)


async def test_ready_means_that_it_serves_not_that_it_has_a_pid(make: Make) -> None:
    one, _ = make("import time; time.sleep(0.3); print('up', flush=True); time.sleep(60)")
    one.start()
    await until(lambda: one.child is not None)
    assert one.phase == "starting"
    assert not one.ever_ready.is_set()
    await within(5, one.ever_ready.wait())
    assert one.phase == "ready"
    await one.stop(2)
    assert one.phase == "stopped"


async def test_a_killed_process_comes_back_as_a_new_incarnation(make: Make) -> None:
    one, script = make(SLEEPS)
    one.start()
    await within(5, one.ever_ready.wait())
    assert one.child is not None
    first = one.child.pid
    one.child.kill()
    await until(lambda: one.phase == "ready" and one.child is not None and one.child.pid != first)
    assert one.restarts == 1
    assert script.codes == [-signal.SIGKILL]
    assert script.lives[0].incarnation != script.lives[1].incarnation
    assert one.last_error is not None
    assert "killed by signal 9" in one.last_error
    await one.stop(2)


async def test_a_process_that_cannot_start_is_reported_with_its_last_words(make: Make) -> None:
    one, script = make("raise SystemExit('no such model')")
    one.start()
    await within(10, one.faltered.wait())
    assert len(script.codes) >= 3
    assert one.last_error is not None
    assert "exit code 1" in one.last_error
    assert "no such model" in one.last_error
    await until(lambda: one.phase == "crash_loop")
    await one.stop(2)


async def test_a_process_that_never_gets_ready_is_ended_and_reported(make: Make) -> None:
    one, script = make("import time; print('loading', flush=True); time.sleep(60)")
    one.ready_limit_s = 0.5
    one.start()
    await within(15, one.faltered.wait())
    assert one.last_error is not None
    assert "not ready within" in one.last_error
    assert "loading" in one.last_error
    await one.stop(2)
    assert script.codes


async def test_a_missing_program_is_reported_and_not_raised(make: Make) -> None:
    one, script = make("")
    life = Life("x", ["/nonexistent/program"], {}, now_ms(), asyncio.Event().wait)  # type: ignore[arg-type]
    script.next_life = lambda: life  # type: ignore[method-assign]
    one.start()
    await within(10, one.faltered.wait())
    assert one.last_error is not None
    assert "cannot be started" in one.last_error
    await one.stop(1)


async def test_stop_kills_what_does_not_listen(make: Make) -> None:
    one, script = make(STUBBORN)
    one.start()
    await within(5, one.ever_ready.wait())
    await within(5, one.stop(0.3))
    assert script.codes == [-signal.SIGKILL]


async def test_stop_while_waiting_for_a_restart_is_immediate(make: Make) -> None:
    one, script = make("raise SystemExit(3)")
    one.start()
    await until(lambda: one.phase == "crash_loop", 15)
    began = time.monotonic()
    await one.stop(5)
    assert time.monotonic() - began < 1
    count = len(script.lives)
    await asyncio.sleep(0.1)
    assert len(script.lives) == count


async def test_processes_of_others_are_ended_by_identity(tmp_path: Path) -> None:
    child = await Child.start([sys.executable, "-c", STUBBORN], {}, tmp_path / "log")
    waiting = asyncio.ensure_future(child.wait())
    await until(lambda: b"up" in (tmp_path / "log").read_bytes())
    assert child.identity is not None
    await within(5, end_all([child.identity], 0.2))
    assert await waiting == -signal.SIGKILL
