"""A private pipeline on free ports in a temporary folder, for the demo, the benches and the tests."""

import contextlib
import json
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from stages.runtime.launch import BusAddress

TENANT: Final = "demo"
KEY: Final = "headrace-demo-key"
MODEL: Final = "smollm2-135m-instruct"
UP_TIMEOUT_S: Final = 120.0
DOWN_TIMEOUT_S: Final = 60.0


class RigError(RuntimeError):
    """The pipeline could not be started or stopped; the message is the command's own."""


@dataclass(frozen=True)
class Rig:
    """A running pipeline and how to reach it."""

    folder: Path
    nats_port: int
    grpc_port: int
    http_port: int

    @property
    def topology(self) -> Path:
        """Its topology file."""
        return self.folder / "topology.yaml"

    @property
    def state(self) -> Path:
        """Its state folder."""
        return self.folder / ".headrace"

    @property
    def nats_url(self) -> str:
        """Where NATS clients connect."""
        return f"nats://127.0.0.1:{self.nats_port}"

    @property
    def grpc_address(self) -> str:
        """Where gRPC clients connect."""
        return f"127.0.0.1:{self.grpc_port}"

    @property
    def http_url(self) -> str:
        """Where OpenAI clients connect."""
        return f"http://127.0.0.1:{self.http_port}/v1"

    def internal_bus(self) -> BusAddress:
        """The stages' own access to the bus (benches watch credits)."""
        return BusAddress.model_validate_json((self.state / "bus.json").read_bytes())

    def headrace(self, *words: str, timeout_s: float = UP_TIMEOUT_S) -> str:
        """Run a `headrace` command on this pipeline; returns stdout, raises `RigError`."""
        done = self._run(words, timeout_s)
        if done.returncode != 0:
            raise RigError(f"headrace {words[0]} failed:\n{done.stderr or done.stdout}")
        return done.stdout

    def _run(self, words: tuple[str, ...], timeout_s: float) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "stages.cli", *words, "--state", str(self.state)]
        # a session of its own: Ctrl-C is for us, and we stop the pipeline ourselves
        with subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        ) as child:
            try:
                out, err = child.communicate(timeout=timeout_s)
            except BaseException:
                _end(child)
                raise
            return subprocess.CompletedProcess(command, child.returncode, out, err)

    def up(self) -> None:
        """Start and wait until ready."""
        self.headrace("up", "--topology", str(self.topology), "--detach", "--json")

    def down(self) -> None:
        """Stop everything and wait."""
        self.headrace("down", timeout_s=DOWN_TIMEOUT_S)

    def status(self) -> dict[str, Any]:
        """`headrace status --json`, healthy or not. Raises `RigError` when nothing answers."""
        done = self._run(("status", "--json"), UP_TIMEOUT_S)
        status: dict[str, Any] = json.loads(done.stdout or "{}")
        if "healthy" not in status:
            raise RigError(f"headrace status failed:\n{done.stderr or done.stdout}")
        return status


def _end(child: "subprocess.Popen[str]") -> None:
    """In order: an `up` that is killed leaves a watchdog behind that nobody has heard of yet."""
    child.terminate()
    try:
        child.communicate(timeout=DOWN_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        child.kill()


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on now."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def default_topology() -> dict[str, Any]:
    """One pool of the built-in model, as in the repository's topology.yaml."""
    key = "sha256:" + sha256(KEY.encode()).hexdigest()
    return {
        "version": 1,
        "models": {"smollm": {"source": MODEL, "context": 8192}},
        "pools": {
            "small": {
                "model": "smollm",
                "executors": {"min": 1, "max": 1},
                "kv_tokens": 65536,
                "price": {"accelerator_hour": 0.08},
            }
        },
        "routes": [{"name": "default", "pool": "small"}],
        "tenants": {TENANT: {"keys": [key]}},
    }


def prepare(folder: Path, topology: dict[str, Any] | None = None) -> Rig:
    """Write a topology with free ports into `folder` without starting it."""
    rig = Rig(folder, *free_ports(3))
    document = topology or default_topology()
    document.setdefault("bus", {})["port"] = rig.nats_port
    doors = document.setdefault("stages", {}).setdefault("egress", {})
    doors["grpc"] = rig.grpc_address
    doors["http"] = f"127.0.0.1:{rig.http_port}"
    rig.topology.write_text(json.dumps(document, indent=1))  # JSON is YAML
    return rig


@contextlib.contextmanager
def stopped_pipeline(topology: dict[str, Any] | None = None) -> Iterator[Rig]:
    """A prepared pipeline; whoever starts it, it is stopped and removed afterwards.

    Also when this process is told to end (SIGTERM) or its terminal closes (SIGHUP).
    """
    folder = Path(tempfile.mkdtemp(prefix="headrace-"))
    rig = prepare(folder, topology)
    with _ending_cleanly():
        try:
            yield rig
        finally:
            if rig.state.exists():
                rig.down()
            shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _ending_cleanly() -> Iterator[None]:
    """Turn the first SIGTERM or SIGHUP into SystemExit, so that what was started is stopped; a second
    one does not break that off."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    left = False

    def leave(number: int, _frame: object) -> None:
        nonlocal left
        if not left:
            left = True
            raise SystemExit(128 + number)

    before = {each: signal.signal(each, leave) for each in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def private_pipeline(topology: dict[str, Any] | None = None) -> Iterator[Rig]:
    """A started pipeline that is stopped and removed afterwards."""
    with stopped_pipeline(topology) as rig:
        rig.up()
        yield rig
