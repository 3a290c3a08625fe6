"""The engine's thread: commands in, reports out, time that tiles, no spinning."""

import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from gpu_worker.driver import FIRST_TOKEN_PAUSE_S, EngineThread, StepReport
from gpu_worker.engine import Engine
from gpu_worker.request import Request
from stages.runtime.models.spec import ModelSpec
from tests.gpu_worker.conftest import TINY
from tests.gpu_worker.helpers import tokens_of


class Collector:
    """Takes reports in the engine's thread; lets the test wait for a request's end."""

    def __init__(self) -> None:
        self.reports: list[StepReport] = []
        self.changed = threading.Condition()

    def __call__(self, report: StepReport) -> None:
        with self.changed:
            self.reports.append(report)
            self.changed.notify_all()

    def finishes(self) -> dict[str, str]:
        return {o.request_id: o.finish for r in self.reports for o in r.outputs if o.finish}

    def wait(self, *names: str) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: set(names) <= set(self.finishes()), timeout=30)


def now_us() -> int:
    return time.monotonic_ns() // 1000


def wait_idle(thread: EngineThread) -> None:
    """Until the thread waits for commands."""
    deadline = time.monotonic() + 30
    while not thread._clock.waiting:
        assert time.monotonic() < deadline, "the engine does not come to rest"
        time.sleep(0.005)


def request(name: str, output: int) -> Request:
    return Request(name, (1, 2, 3), output, ignore_eos=True)


def test_requests_run_in_the_thread_and_time_tiles(tiny: ModelSpec) -> None:
    collector = Collector()
    thread = EngineThread(lambda: Engine(tiny, TINY), collector)
    before_start = now_us()
    thread.start()
    after_start = now_us()
    engine = thread.wait_ready(20)
    for i in range(6):
        thread.submit(request(f"r{i}", 10))
    collector.wait(*(f"r{i}" for i in range(6)))
    outputs = [o for report in collector.reports for o in report.outputs]
    assert all(len(tokens) == 10 for tokens in tokens_of(outputs).values())
    wait_idle(thread)
    time.sleep(0.2)
    before_read = now_us()
    live = thread.intervals
    after_read = now_us()
    # idle time is counted while it passes
    assert before_read - after_start <= live.total_us <= after_read - before_start
    assert live.idle_us >= 200_000
    thread.stop(5)
    final = thread.intervals
    assert final.total_us >= live.total_us
    assert final.busy_us == engine.busy_us == sum(o.busy_us for o in outputs)
    assert final.startup_us > 0
    totals = [report.intervals.total_us for report in collector.reports]
    assert totals == sorted(totals)


def test_idle_costs_no_processor_time(tiny: ModelSpec) -> None:
    thread = EngineThread(lambda: Engine(tiny, TINY), lambda _: None)
    thread.start()
    thread.wait_ready(20)
    wait_idle(thread)
    assert thread._thread.ident is not None
    clock = time.pthread_getcpuclockid(thread._thread.ident)
    before = time.clock_gettime(clock)
    time.sleep(0.5)
    assert time.clock_gettime(clock) - before < 0.05
    thread.stop(5)


def test_cancel_ends_a_request_within_a_step(tiny: ModelSpec) -> None:
    collector = Collector()
    thread = EngineThread(lambda: Engine(tiny, TINY), collector)
    thread.start()
    thread.submit(request("long", 400))
    with collector.changed:
        assert collector.changed.wait_for(lambda: collector.reports, timeout=20)
    thread.cancel("long")
    collector.wait("long")
    assert collector.finishes() == {"long": "cancelled"}
    engine = thread.wait_ready(20)
    assert engine.running == ()
    thread.stop(5)


def test_refusals_are_reported_and_do_not_end_the_thread(tiny: ModelSpec) -> None:
    collector = Collector()
    thread = EngineThread(lambda: Engine(tiny, TINY), collector)
    thread.start()
    thread.submit(request("big", 4000))
    thread.submit(request("fine", 2))
    collector.wait("fine")
    refused = [name for report in collector.reports for name, _ in report.refused]
    assert refused == ["big"]
    thread.stop(5)


def test_a_failure_ends_the_thread_and_is_told() -> None:
    def make() -> Engine:
        raise ValueError("no such weights")

    ended: list[BaseException | None] = []
    thread = EngineThread(make, lambda _: None, ended.append)
    thread.start()
    with pytest.raises(ValueError, match="no such weights"):
        thread.wait_ready(5)
    with pytest.raises(ValueError, match="no such weights"):
        thread.stop(5)
    assert [type(error) for error in ended] == [ValueError]


def test_stop_cancels_running_requests_and_reports_them(tiny: ModelSpec) -> None:
    collector = Collector()
    thread = EngineThread(lambda: Engine(tiny, TINY), collector)
    thread.start()
    thread.wait_ready(20)
    thread.submit(request("long", 400))
    thread.submit(request("late", 400))
    thread.stop(20)
    assert collector.finishes() == {"long": "cancelled", "late": "cancelled"}


def test_a_report_says_when_its_step_ran(tiny: ModelSpec) -> None:
    collector = Collector()
    thread = EngineThread(lambda: Engine(tiny, TINY), collector)
    thread.start()
    thread.wait_ready(20)
    thread.submit(request("a", 5))
    collector.wait("a")
    thread.stop(20)
    steps = [report for report in collector.reports if report.outputs]
    assert len(steps) == 5
    ends = [0.0]
    for step in steps:
        busy_ms = sum(output.busy_us for output in step.outputs) / 1e3
        assert step.ended_ms - step.began_ms >= busy_ms - 0.01
        assert step.began_ms >= ends[-1] - 1  # the wall clock may be set by a little
        ends.append(step.ended_ms)


def test_the_cores_are_left_to_others_only_after_a_first_token(tiny: ModelSpec) -> None:
    collector = Collector()
    pauses: list[tuple[int, float]] = []  # reports so far, seconds

    def sleep(seconds: float) -> None:
        pauses.append((len(collector.reports), seconds))

    thread = EngineThread(lambda: Engine(tiny, TINY), collector, sleep=sleep)
    thread.start()
    thread.wait_ready(20)
    thread.submit(request("a", 20))
    thread.submit(Request("b", (1,) * 100, 20, ignore_eos=True))  # several steps until its first
    thread.submit(Request("c", (1, 2), 9, resume_ids=(3, 4), ignore_eos=True))  # had its first
    collector.wait("a", "b", "c")
    thread.stop(20)
    firsts = [
        number
        for number, report in enumerate(collector.reports, 1)
        if any(output.offset == 0 and output.token_ids for output in report.outputs)
    ]
    assert 1 <= len(firsts) <= 2
    assert pauses == [(number, FIRST_TOKEN_PAUSE_S) for number in firsts]


EXITING = """
import sys, time
from gpu_worker.driver import EngineThread
from gpu_worker.request import Request

class Slow:
    busy_us, idle, running = 0, False, ()
    def step(self):
        print("step", flush=True)
        time.sleep(0.5)
        print("stepped", flush=True)
        return []

thread = EngineThread(Slow, lambda _: None)
thread.start()
thread.wait_ready(20)
time.sleep(0.1)
sys.exit(3)
"""


def test_a_process_does_not_end_in_the_middle_of_a_step() -> None:
    root = Path(__file__).parents[2]
    ended = subprocess.run(
        [sys.executable, "-c", EXITING], cwd=root, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 3, ended.stderr
    assert ended.stdout.count("step\n") == ended.stdout.count("stepped\n") > 0
