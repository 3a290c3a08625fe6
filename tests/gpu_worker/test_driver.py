"""The engine's thread: commands in, reports out, time that tiles, no spinning."""

import threading
import time

import pytest

from gpu_worker.driver import EngineThread, StepReport
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
            assert self.changed.wait_for(lambda: set(names) <= set(self.finishes()), timeout=20)


def request(name: str, output: int) -> Request:
    return Request(name, (1, 2, 3), output, ignore_eos=True)


def test_requests_run_in_the_thread_and_time_tiles(tiny: ModelSpec) -> None:
    collector = Collector()
    thread = EngineThread(lambda: Engine(tiny, TINY), collector)
    begin = time.monotonic_ns() // 1000
    thread.start()
    engine = thread.wait_ready(20)
    for i in range(6):
        thread.submit(request(f"r{i}", 10))
    collector.wait(*(f"r{i}" for i in range(6)))
    outputs = [o for report in collector.reports for o in report.outputs]
    assert all(len(tokens) == 10 for tokens in tokens_of(outputs).values())
    time.sleep(0.2)
    now = time.monotonic_ns() // 1000
    live = thread.intervals
    assert abs(live.total_us - (now - begin)) < 20_000  # idle time is counted while it passes
    assert live.idle_us > 150_000
    thread.stop(5)
    final = thread.intervals
    assert final.total_us >= live.total_us
    assert final.busy_us == engine.busy_us == sum(o.busy_us for o in outputs)
    assert final.startup_us > 0
    totals = [report.intervals.total_us for report in collector.reports]
    assert totals == sorted(totals)
    assert not thread.alive


def test_idle_costs_no_processor_time(tiny: ModelSpec) -> None:
    thread = EngineThread(lambda: Engine(tiny, TINY), lambda _: None)
    thread.start()
    thread.wait_ready(20)
    time.sleep(0.1)
    before = time.process_time()
    time.sleep(0.5)
    assert time.process_time() - before < 0.1
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
    assert collector.reports[-1].running == ()
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


def test_stop_does_not_wait_for_running_requests(tiny: ModelSpec) -> None:
    collector = Collector()
    thread = EngineThread(lambda: Engine(tiny, TINY), collector)
    thread.start()
    thread.wait_ready(20)
    thread.submit(request("long", 400))
    thread.stop(5)
    assert "long" not in collector.finishes()
