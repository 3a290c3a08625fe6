"""Control's pure parts: backoff, order, logs, identity of processes, lines of the status."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from contracts.status import ProcessStatus
from contracts.topology import Topology
from stages.control.backoff import Backoff
from stages.control.logs import MOST_BYTES, bound_log, fresh_log, previous, tail
from stages.control.order import STOP_S, plan, stop_phases
from stages.control.process import Identity, identify
from stages.control.status import conservation, problems
from stages.runtime.limits import DRAIN_S, EXECUTOR_READY_S, LOAD_S
from tests.support.waiting import until


class Clock:
    """Seconds that pass when told to."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def topology(**pools: dict[str, object]) -> Topology:
    """A valid topology with these pools."""
    return Topology.model_validate(
        {
            "version": 1,
            "models": {"m": {"source": "m"}},
            "pools": {name: {"model": "m", **options} for name, options in pools.items()},
            "routes": [{"pool": next(iter(pools))}],
            "tenants": {"demo": {"keys": ["sha256:" + "a" * 64]}},
            "stages": {"egress": {"replicas": 2}},
        }
    )


def test_restarts_are_delayed_twice_as_long_each_time_up_to_ten_seconds() -> None:
    backoff = Backoff(Clock())
    delays = [round(backoff.ended(), 1) for _ in range(8)]
    assert delays == [0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0]


def test_the_delay_stays_bounded_however_often_it_fails() -> None:
    backoff = Backoff(Clock())
    assert {backoff.ended() for _ in range(2000)} <= {0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0}
    assert backoff.ended() == 10.0


def test_thirty_healthy_seconds_start_the_backoff_afresh() -> None:
    clock = Clock()
    backoff = Backoff(clock)
    for _ in range(6):
        backoff.ended()
    assert backoff.looping
    backoff.ready()
    clock.now += 29
    assert backoff.ended() == 10.0, "29 s are not yet healthy"
    backoff.ready()
    clock.now += 30
    assert backoff.ended() == 0.05
    assert not backoff.looping
    assert backoff.ended() == 0.4, "it ended again at once"


def test_readiness_of_an_earlier_incarnation_does_not_count() -> None:
    clock = Clock()
    backoff = Backoff(clock)
    backoff.ready()
    backoff.ended()
    clock.now += 1000
    assert backoff.ended() == 0.4


def test_the_plan_has_every_process_of_the_topology_with_its_threads() -> None:
    specs = plan(topology(a={"executors": {"min": 2, "max": 2}, "threads": 3}, b={}))
    assert [spec.instance for spec in specs] == [
        *(
            "a-0",
            "ingress-0",
            "routing-0",
            "queueing-0",
            "queueing-1",
            "egress-0",
            "egress-1",
            "metering-0",
        ),
        *("a-1", "b-0"),
    ]
    assert specs[0].env["OMP_NUM_THREADS"] == "3"
    assert specs[0].module == "gpu_worker"
    assert specs[1].module == "stages.ingress"
    assert len({spec.instance for spec in specs}) == len(specs)


def test_ingress_stops_first_and_metering_last() -> None:
    phases = stop_phases(plan(topology(a={})))
    assert phases[0][0] == ["ingress-0"]
    assert phases[-1][0] == ["metering-0"]
    at = {name: number for number, (names, _) in enumerate(phases) for name in names}
    assert len(at) == len(plan(topology(a={}))), "every process has its phase"
    assert at["queueing-0"] > at["egress-0"] == at["a-0"]
    assert sum(seconds for _, seconds in phases) < STOP_S


def test_control_waits_longer_than_a_stage_drains_or_a_model_loads() -> None:
    specs = plan(topology(a={}))
    for names, seconds in stop_phases(specs):
        for spec in specs:
            assert spec.instance not in names or DRAIN_S[spec.stage] < seconds
    assert LOAD_S < EXECUTOR_READY_S


def test_a_process_is_identified_by_pid_and_start_time() -> None:
    me = identify(os.getpid())
    assert me is not None
    assert me.alive
    assert not Identity(pid=me.pid, start_ticks=me.start_ticks + 1, boot_id=me.boot_id).alive
    assert not Identity(pid=me.pid, start_ticks=me.start_ticks, boot_id="before").alive


def test_a_zombie_is_not_alive() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    found = identify(child.pid)
    assert found is not None
    assert child.stdin is not None
    child.stdin.close()
    until(lambda: identify(child.pid) is None)  # it has ended; nobody asked for its exit code
    assert not found.alive
    child.wait()


def test_a_new_log_keeps_the_previous_one(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "x.log"
    fresh_log(log)
    log.write_text("first\n")
    fresh_log(log)
    log.write_text("second\n\nlast\n")
    assert previous(log).read_text() == "first\n"
    assert tail(log) == ["second", "last"]
    assert tail(tmp_path / "none") == []


def test_a_log_that_grew_too_large_is_cut_while_it_is_written(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    with log.open("ab", buffering=0) as writer:
        writer.write(b"x" * (MOST_BYTES + 1))
        bound_log(log)
        writer.write(b"goes on\n")
    assert log.read_text() == "goes on\n"
    assert previous(log).stat().st_size == MOST_BYTES + 1


def process(instance: str, **fields: object) -> ProcessStatus:
    """One process of a report."""
    return ProcessStatus.model_validate(
        {"stage": "s", "instance": instance, "phase": "ready", **fields}
    )


@pytest.mark.parametrize(("queued", "balanced"), [(3, True), (4, False)])
def test_the_conservation_law_is_checked(queued: int, balanced: bool) -> None:
    counters = {"accepted": 10, "finished": 3, "cancelled": 1, "failed": 1, "expired": 1}
    law = conservation([process("q", counters={**counters, "running": 1, "queued": queued})])
    assert law is not None
    assert law.balanced is balanced
    assert bool(problems([], law)) is not balanced


def test_before_queueing_has_reported_there_is_no_law() -> None:
    assert conservation([process("q")]) is None


def test_a_silent_replica_of_queueing_counts_only_while_it_is_an_owner() -> None:
    figures = dict.fromkeys(("finished", "cancelled", "failed", "expired", "queued"), 0.0)
    figures |= {"accepted": 2.0, "running": 2.0}
    stopped = process("queueing-0", phase="silent", incarnation="queueing-0-a", counters=figures)
    standby = process("queueing-1", incarnation="queueing-1-b", counters=figures)
    both = conservation([stopped, standby], {"queueing-0-a"})
    replaced = conservation([stopped, standby], {"queueing-1-b"})
    assert both is not None
    assert replaced is not None
    assert (both.accepted, replaced.accepted, replaced.running) == (4, 2, 2)


def test_what_is_wrong_comes_worst_first_with_its_cause() -> None:
    said = problems(
        [
            process("fine"),
            process("slow", phase="starting"),
            process("bad", phase="crash_loop", restarts=7, last_error="exit code 1; …:\nboom"),
        ],
        None,
    )
    assert len(said) == 2
    assert said[0].startswith("bad keeps ending")
    assert "boom" in said[0]
    assert "slow" in said[1]
