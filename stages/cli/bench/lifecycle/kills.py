"""kill -9 of each process in turn while calls run: how long until all is well, with another in its place."""

import asyncio
import os
import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from contracts.status import ProcessStatus, StatusReport
from stages.cli.bench.lifecycle.load import Load
from stages.cli.bench.lifecycle.site import Site

TARGETS: Final = (
    "nats-server", "control", "watchdog", "ingress", "routing", "queueing owner", "egress",
    "executor", "metering",
)  # fmt: skip
HEALTHY_S: Final = 60.0
POLL_S: Final = 0.05
PROBE_TOKENS: Final = 1


class NotHealthyError(RuntimeError):
    """The pipeline did not become well again; what control says is in the message."""


@dataclass(frozen=True)
class Killed:
    """One kill. Times in seconds of the monotonic clock."""

    target: str
    begin: float
    end: float

    @property
    def seconds(self) -> float:
        """Until all was well."""
        return self.end - self.begin


async def kill_each(
    site: Site, load: Load, seed: int, say: Callable[[str], None]
) -> tuple[list[Killed], float]:
    """All of them in an order drawn by the seed; with the time of the queue's takeover."""
    order = list(TARGETS)
    random.Random(seed).shuffle(order)  # noqa: S311 - an order, no secret
    kills, takeover_s = [], 0.0
    for target in order:
        if target == "queueing owner":
            killed, takeover_s = await _kill_owner(site, load)
            say(f"{target}: took over after {takeover_s:.2f} s, well after {killed.seconds:.2f} s")
        else:
            killed = await _kill(site, load, target)
            say(f"{target}: well after {killed.seconds:.2f} s")
        kills.append(killed)
    return kills, takeover_s


async def _kill_owner(site: Site, load: Load) -> tuple[Killed, float]:
    """The call that is sent right after the kill can only be admitted by the new owner."""
    probes = []

    def probe() -> None:
        probes.append(asyncio.get_running_loop().create_task(load.once("grpc", PROBE_TOKENS)))

    killed = await _kill(site, load, "queueing owner", probe)
    call = await probes[0]
    return killed, call.accepted - killed.begin


async def _kill(
    site: Site, load: Load, target: str, then: Callable[[], None] = lambda: None
) -> Killed:
    report = await until_healthy(site)
    await load.full()
    name, pid = _find(report, target)
    begin = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    then()
    await until_healthy(site, lambda now: _pid(now, name) not in (None, pid))
    return Killed(target, begin, time.monotonic())


async def until_healthy(
    site: Site, also: Callable[[StatusReport], bool] = lambda _: True
) -> StatusReport:
    """Poll control until it says so. Raises `NotHealthyError`."""
    until = time.monotonic() + HEALTHY_S
    said: StatusReport | None = None
    while time.monotonic() < until:
        report = await site.status()
        if report is not None:
            said = report
            if report.healthy and also(report):
                return report
        await asyncio.sleep(POLL_S)
    problems = said.problems if said is not None else ["control does not answer"]
    raise NotHealthyError(f"not well after {HEALTHY_S:.0f} s: {'; '.join(problems)}")


def _find(report: StatusReport, target: str) -> tuple[str, int]:
    """The instance to kill, and its pid."""
    names = {"egress": "egress-0", "executor": "small-0"}
    if target == "queueing owner":
        owner = report.queues[0].owner
        [name] = [each.instance for each in report.stages if each.incarnation == owner]
    elif target in ("nats-server", "control", "watchdog"):
        name = target
    else:
        name = names.get(target, f"{target}-0")
    pid = _pid(report, name)
    assert pid is not None, f"{name} does not run: {report.problems}"
    return name, pid


def _pid(report: StatusReport, name: str) -> int | None:
    match name:
        case "control":
            return report.pid
        case "watchdog":
            return report.watchdog.pid if report.watchdog is not None else None
        case "nats-server":
            return report.bus.pid
    processes: list[ProcessStatus] = [*report.stages, *report.executors]
    ready = [each.pid for each in processes if each.instance == name and each.phase == "ready"]
    return ready[0] if ready else None
