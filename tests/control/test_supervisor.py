"""Supervision of real processes: readiness, restart, crash loop, stop."""

import asyncio
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import pytest

from stages.control.backoff import Backoff
from stages.control.process import Child, Identity, end_all
from stages.control.supervisor import Change, Life, Supervised
from stages.runtime.clock import now_ms
from tests.support.waiting import LIMIT_S, eventually

SLEEPS = "import time; print('up', flush=True); time.sleep(600)"
STUBBORN = "import signal, time; signal.signal(15, lambda *_: print('no')); print('up', flush=True); time.sleep(600)"


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


class LongBackoff(Backoff):
    """Waits an hour."""

    def ended(self) -> float:
        super().ended()
        return 3600.0


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


async def soon(what: Awaitable[object]) -> None:
    """Wait, not for ever."""
    await asyncio.wait_for(what, LIMIT_S)


async def test_ready_means_that_it_serves_not_that_it_has_a_pid(make: Make, tmp_path: Path) -> None:
    go = tmp_path / "go"
    one, _ = make(
        f"import os, time\nwhile not os.path.exists({str(go)!r}): time.sleep(0.01)\n"
        "print('up', flush=True); time.sleep(600)"
    )
    one.start()
    await eventually(lambda: one.child is not None)
    assert one.phase == "starting"
    assert not one.ever_ready.is_set()
    go.touch()
    await soon(one.ever_ready.wait())
    assert one.phase == "ready"
    await one.stop(2)
    assert one.phase == "stopped"


async def test_a_killed_process_comes_back_as_a_new_incarnation(make: Make) -> None:
    one, script = make(SLEEPS)
    one.start()
    await soon(one.ever_ready.wait())
    assert one.child is not None
    first = one.child.pid
    one.child.kill()
    await eventually(
        lambda: one.phase == "ready" and one.child is not None and one.child.pid != first
    )
    assert one.restarts == 1
    assert script.codes == [-signal.SIGKILL]
    assert script.lives[0].incarnation != script.lives[1].incarnation
    assert one.last_error is not None
    assert "killed by signal 9" in one.last_error
    await one.stop(2)


async def test_a_process_that_cannot_start_is_reported_with_its_last_words(make: Make) -> None:
    one, script = make("raise SystemExit('no such model')")
    one.start()
    await soon(one.faltered.wait())
    assert len(script.codes) >= 3
    assert one.last_error is not None
    assert "exit code 1" in one.last_error
    assert "no such model" in one.last_error
    await eventually(lambda: one.phase == "crash_loop")
    await one.stop(2)


async def test_a_process_that_never_gets_ready_is_ended_and_reported(make: Make) -> None:
    one, script = make("import time; print('loading', flush=True); time.sleep(600)")
    one.ready_limit_s = 0.5
    one.start()
    await soon(one.faltered.wait())
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
    await soon(one.faltered.wait())
    assert one.last_error is not None
    assert "cannot be started" in one.last_error
    await one.stop(1)


async def test_stop_kills_what_does_not_listen(make: Make) -> None:
    one, script = make(STUBBORN)
    one.start()
    await soon(one.ever_ready.wait())
    await soon(one.stop(0.3))
    assert script.codes == [-signal.SIGKILL]


async def test_stop_while_waiting_for_a_restart_is_immediate(make: Make) -> None:
    one, script = make("raise SystemExit(3)")
    one.start()
    await eventually(lambda: one.phase == "crash_loop")
    one.backoff = LongBackoff(time.monotonic)
    await eventually(lambda: one.backoff.failures > 0)
    count = len(script.lives)
    await soon(one.stop(LIMIT_S))  # an hour's wait is cut short
    await asyncio.sleep(0.1)
    assert len(script.lives) == count


async def test_it_goes_on_after_whatever_its_launcher_raises(make: Make) -> None:
    one, script = make(SLEEPS)
    draw, failures = script.next_life, iter([ValueError("once"), KeyError("twice")])

    def next_life() -> Life:
        for failure in failures:
            raise failure
        return draw()

    script.next_life = next_life  # type: ignore[method-assign]
    one.start()
    await soon(one.ever_ready.wait())
    assert one.last_error is not None
    assert "twice" in one.last_error
    await one.stop(2)


async def test_a_child_that_could_not_be_written_down_is_ended_before_the_next(make: Make) -> None:
    one, script = make(SLEEPS)
    failures = iter([OSError("disk full")])
    children: list[Child] = []

    def on_pid() -> None:
        if one.child is not None:
            children.append(one.child)
        for failure in failures:
            raise failure

    one.on_pid = on_pid
    one.start()
    await soon(one.ever_ready.wait())
    assert script.codes == [-signal.SIGKILL]
    assert len(children) == 2
    assert children[0].identity is not None
    assert not children[0].identity.alive
    await one.stop(2)


@pytest.mark.parametrize(
    "end", [lambda one: one.stop(0.1), lambda one: asyncio.to_thread(one.kill)]
)
async def test_a_stop_during_the_spawn_leaves_no_child(
    make: Make, monkeypatch: pytest.MonkeyPatch, end: Callable[[Supervised], Awaitable[None]]
) -> None:
    one, _ = make(SLEEPS)
    spawned: list[Child] = []
    asked = asyncio.Event()
    start = Child.start

    async def slow(*args: Any) -> Child:
        spawned.append(await start(*args))
        await asked.wait()
        return spawned[0]

    monkeypatch.setattr(Child, "start", slow)
    one.start()
    await eventually(lambda: bool(spawned))
    ending = asyncio.ensure_future(end(one))
    await asyncio.sleep(0)
    asked.set()
    await soon(ending)
    assert await asyncio.wait_for(spawned[0].wait(), LIMIT_S) == -signal.SIGKILL
    await one.stop(1)


async def test_what_waits_at_the_gate_is_not_started_once_a_stop_has_begun(make: Make) -> None:
    one, script = make(SLEEPS)
    await one.gate.acquire()
    await one.gate.acquire()
    one.start()
    await asyncio.sleep(0)
    one.hold()
    one.gate.release()
    await eventually(lambda: one.phase == "stopped")
    assert script.lives == []


async def test_what_is_condemned_is_killed_and_started_again_with_the_reason(make: Make) -> None:
    one, script = make(SLEEPS)
    one.start()
    await soon(one.ever_ready.wait())
    one.condemn("no beat for 15 s")
    await eventually(lambda: len(script.lives) == 2 and one.phase == "ready")
    assert one.last_error is not None
    assert "no beat for 15 s" in one.last_error
    await one.stop(2)


class Immortal:
    """A process in a system call that does not return."""

    alive = True

    def __init__(self) -> None:
        self.got: list[int] = []

    def send(self, number: int) -> None:
        """Heeds nothing."""
        self.got.append(number)


async def test_a_process_that_the_kernel_holds_is_not_waited_for_without_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("stages.control.process.KILL_S", 0.1)
    held = Immortal()
    assert await end_all([cast("Identity", held)], 0.1) == [held]
    assert held.got == [signal.SIGTERM, signal.SIGKILL]


async def test_processes_of_others_are_ended_by_identity(tmp_path: Path) -> None:
    child = await Child.start([sys.executable, "-c", STUBBORN], {}, tmp_path / "log")
    waiting = asyncio.ensure_future(child.wait())
    await eventually(lambda: b"up" in (tmp_path / "log").read_bytes())
    assert child.identity is not None
    assert await end_all([child.identity], 0.2) == []
    assert await waiting == -signal.SIGKILL
