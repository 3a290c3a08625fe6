"""Checks that need this machine: ports, stored models, cores, disk."""

import contextlib
import errno
import os
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from contracts.topology import Topology
from stages.control.state import RunState, StateFolder
from stages.runtime.models.errors import ModelError
from stages.runtime.models.store import resolve
from stages.runtime.topology_file import Finding, Report
from stages.runtime.topology_file.finding import Level
from stages.runtime.topology_file.finding import Path as Place

Found = tuple[Place, str, Level]

STREAMS: Final = 2  # each may take bus.store_bytes
LEAST_STORE: Final = 1 << 24  # the least that the topology may say

_BUS_PORT: Final[Place] = ("bus", "port")
_GRPC: Final[Place] = ("stages", "egress", "grpc")
_HTTP: Final[Place] = ("stages", "egress", "http")


def check_machine(report: Report, state: Path, running: RunState | None) -> None:
    """Add what stands in the way here. Ports of our own running pipeline are not in the way."""
    topology = report.topology
    if topology is None:
        return
    line = report.tree.line
    report.add(
        [
            Finding(path, line(path), message, level=level)
            for path, message, level in (
                *_ports(topology, running),
                *_models(topology),
                *_cores(topology),
                *_disk(topology, state),
            )
        ]
    )


def _ports(topology: Topology, running: RunState | None) -> Iterator[Found]:
    ours = set()
    if running is not None:
        doors = (running.grpc, running.http)
        ours = {("127.0.0.1", running.bus_port), *(_address(door) for door in doors if door)}
    for place, (host, port) in (
        (_BUS_PORT, ("127.0.0.1", topology.bus.port)),
        (_GRPC, _address(topology.stages.egress.grpc)),
        (_HTTP, _address(topology.stages.egress.http)),
    ):
        if (host, port) in ours:
            continue
        problem = cannot_listen(host, port)
        if problem:
            yield place, problem, "error"


def _address(listen: str) -> tuple[str, int]:
    host, _, port = listen.rpartition(":")
    return host.strip("[]"), int(port)


def cannot_listen(host: str, port: int) -> str | None:
    """Why a server could not listen there; None when it could."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        # A port whose last connections are still closing is free all the same.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            probe.listen(1)
        except OSError as error:
            what = "is in use by another program" if error.errno == errno.EADDRINUSE else ""
            return (
                f"port {port} on {host} {what or f'cannot be used: {error.strerror}'}; take another"
            )
    return None


def _models(topology: Topology) -> Iterator[Found]:
    for name, model in topology.models.items():
        try:
            resolve(model.source)
        except ModelError as error:
            yield ("models", name, "source"), str(error), "error"


def _cores(topology: Topology) -> Iterator[Found]:
    cores = os.cpu_count() or 1
    for name, pool in topology.pools.items():
        wanted = pool.threads * pool.executors.min
        if wanted > cores:
            yield (
                ("pools", name, "threads"),
                f"{pool.executors.min} x {pool.threads} threads are more than this machine's "
                f"{cores} cores; executors will wait for each other",
                "warning",
            )


def _disk(topology: Topology, state: Path) -> Iterator[Found]:
    folder = state.absolute()
    while not folder.exists():
        folder = folder.parent
    room = shutil.disk_usage(folder).free + _size(StateFolder(state).nats)
    wanted = STREAMS * topology.bus.store_bytes
    if room < wanted:
        fits = room // STREAMS >> 20 << 20
        advice = f"write {fits} or less, or free" if fits >= LEAST_STORE else "free"
        yield (
            ("bus", "store_bytes"),
            f"stored requests and usage events may take {STREAMS} x {topology.bus.store_bytes} "
            f"bytes, but there is room for {room} in {folder}; {advice} "
            f"{wanted - room} bytes of this disk",
            "error",
        )


def _size(folder: Path) -> int:
    """Bytes on disk of what an earlier run stored: it is used again."""
    total = 0
    for file in folder.rglob("*"):
        with contextlib.suppress(OSError):  # a running server removes files meanwhile
            total += file.stat().st_blocks * 512
    return total
