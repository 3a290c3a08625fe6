"""`headrace doctor`: what this machine has, and what follows from each."""

import os
import platform
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final, Literal

import typer

from stages.cli.common import FAILED, OK, JsonOption, print_json
from stages.control.machine import cannot_listen
from stages.control.natsd import NatsServerError, find_nats_server, nats_server_version
from stages.runtime.models.store import BUILT_IN, cache_dir, list_models

Verdict = Literal["ok", "note", "bad"]

_GIB: Final = 1 << 30
_MARKS: Final = {"ok": ("✓", "green"), "note": ("·", "yellow"), "bad": ("✗", "red")}
_LEAST_MEMORY: Final = 4 * _GIB
_LEAST_DISK: Final = 2 * _GIB
_PORTS: Final = {"NATS": 4222, "gRPC": 7070, "HTTP": 8080}
_OPTIONS: Final = {
    "NATS": "bus.port",
    "gRPC": "stages.egress.grpc",
    "HTTP": "stages.egress.http",
}


@dataclass(frozen=True)
class Row:
    """One thing looked at: what was found and what it means."""

    what: str
    found: str
    means: str
    verdict: Verdict = "ok"


def doctor(as_json: JsonOption = False) -> None:
    """Look at cores, memory, disk, compiler, GPU, ports, cache and versions.

    Exit code 0 when the pipeline can run here, 1 when something essential is missing.
    """
    rows = list(examine())
    bad = any(row.verdict == "bad" for row in rows)
    if as_json:
        print_json({"ok": not bad, "rows": [asdict(row) for row in rows]})
    else:
        width = max(len(row.what) for row in rows)
        for row in rows:
            mark, colour = _MARKS[row.verdict]
            typer.secho(f"{mark} {row.what:<{width}}  {row.found}", fg=colour)
            typer.echo(f"  {'':<{width}}  {row.means}")
    raise typer.Exit(FAILED if bad else OK)


def examine() -> Iterator[Row]:
    """Every row, in order of importance."""
    checks: tuple[Callable[[], Row], ...] = (
        *(_python, _torch, _nats, _cores, _memory, _disk, _gpu, _compiler, _cache),
    )
    for check in checks:
        yield check()
    for door, port in _PORTS.items():
        yield _port(door, port)


def _python() -> Row:
    fine = sys.version_info >= (3, 11)
    means = "fine" if fine else "3.11 or newer is needed"
    return Row("python", platform.python_version(), means, "ok" if fine else "bad")


def _torch() -> Row:
    try:
        found = version("torch")
    except PackageNotFoundError:
        return Row("torch", "missing", "executors cannot start; run: make setup", "bad")
    where = "CPU build" if "+cpu" in found else "build with GPU libraries"
    return Row("torch", found, f"{where}; only executors load it")


def _nats() -> Row:
    try:
        binary = find_nats_server()
        found = ".".join(map(str, nats_server_version(binary)))
    except NatsServerError as error:
        return Row("nats-server", "unusable", str(error), "bad")
    return Row("nats-server", f"{found} ({binary})", "started by `headrace up`")


def _cores() -> Row:
    cores = len(os.sched_getaffinity(0))
    means = f"set pools.NAME.threads to at most {cores}, over all executors"
    if cores == 1:
        return Row("cores", "1", "stages and executor share it; expect slow answers", "note")
    return Row("cores", str(cores), means)


def _memory() -> Row:
    total, free = _meminfo("MemTotal"), _meminfo("MemAvailable")
    found = f"{total / _GIB:.1f} GiB, {free / _GIB:.1f} GiB available"
    if free < _LEAST_MEMORY:
        return Row(
            "memory",
            found,
            "the default pool plans about 3.5 GiB; lower pools.NAME.kv_tokens if it does not fit",
            "note",
        )
    return Row("memory", found, "an executor needs its weights and KV cache; it prints both")


def _meminfo(name: str) -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    return 0


def _disk() -> Row:
    free = shutil.disk_usage(Path.cwd()).free
    means = (
        "state, usage and logs go to .headrace here; stored data takes up to 2 x bus.store_bytes"
    )
    verdict: Verdict = "note" if free < _LEAST_DISK else "ok"
    return Row("disk", f"{free / _GIB:.1f} GiB free here", means, verdict)


def _gpu() -> Row:
    devices = sorted(Path("/dev").glob("nvidia[0-9]*"))
    if not devices:
        return Row("GPU", "none", "executors compute on the CPU (pools.NAME.device: auto)")
    means = "not used yet: executors of this version compute on the CPU"
    return Row("GPU", f"{len(devices)} NVIDIA", means, "note")


def _compiler() -> Row:
    found = next((name for name in ("cc", "gcc", "clang") if shutil.which(name)), None)
    return Row("compiler", found or "none", "none is needed")


def _cache() -> Row:
    stored = [model.source for model in list_models()]
    found = f"{cache_dir()}: {', '.join(stored) or 'no models'}"
    if BUILT_IN not in stored:
        return Row("models", found, f"run: headrace models pull {BUILT_IN}", "note")
    return Row("models", found, "`headrace up` starts without network")


def _port(door: str, port: int) -> Row:
    problem = cannot_listen("127.0.0.1", port)
    if problem:
        means = f"if it is not our own pipeline, set {_OPTIONS[door]} in topology.yaml"
        return Row(f"port {port}", "in use", means, "note")
    return Row(f"port {port}", "free", f"{door} clients connect here by default")
