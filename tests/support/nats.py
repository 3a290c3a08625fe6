"""A real nats-server for tests: one for the session, every stream removed before each test."""

import json
import subprocess
import sysconfig
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from stages.runtime.bus import Bus
from stages.runtime.launch import BusAddress

USER, PASSWORD = "test", "test"
MAX_PAYLOAD = 8 << 20
START_S = 10.0

CONFIG = """
listen: "127.0.0.1:{port}"
max_payload: {max_payload}
ports_file_dir: "{folder}"
jetstream {{ store_dir: "{folder}/store" }}
authorization {{ user: {user}, password: {password} }}
"""


class NatsServer:
    """One nats-server process with its files under `folder`, on a free port unless one is given."""

    def __init__(self, folder: Path, port: int = -1) -> None:
        config = folder / "nats.conf"
        config.write_text(
            CONFIG.format(
                port=port, folder=folder, max_payload=MAX_PAYLOAD, user=USER, password=PASSWORD
            )
        )
        binary = Path(sysconfig.get_path("scripts")) / "nats-server"
        self._process = subprocess.Popen(
            [binary, "-c", config], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        self.address = BusAddress(url=self._url(folder), user=USER, password=PASSWORD)

    def _url(self, folder: Path) -> str:
        ports = folder / f"nats-server_{self._process.pid}.ports"
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                return str(json.loads(ports.read_text())["nats"][0])
            except (OSError, ValueError):  # not written yet, or half written
                time.sleep(0.01)
        raise RuntimeError(f"nats-server did not start: exit code {self._process.poll()}")

    def kill(self) -> None:
        """As a crash does."""
        self._process.kill()
        self._process.wait(10)

    def stop(self) -> None:
        """End the process and wait for it."""
        self._process.terminate()
        self._process.wait(10)


@pytest.fixture(scope="session")
def nats_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    """The session's server; its streams outlive a test, so prefer `bus_address`."""
    server = NatsServer(tmp_path_factory.mktemp("nats"))
    yield server
    server.stop()


@pytest.fixture
async def bus_address(nats_server: NatsServer) -> BusAddress:
    """The address of a server without any stream."""
    bus = await Bus.connect(nats_server.address, "cleaner")
    for stream in await bus.js.streams_info():
        await bus.js.delete_stream(str(stream.config.name))
    await bus.close()
    return nats_server.address


@pytest.fixture
async def bus(bus_address: BusAddress) -> AsyncIterator[Bus]:
    """A connected bus, closed after the test."""
    connected = await Bus.connect(bus_address, "test")
    yield connected
    await connected.close()


async def flushed(bus: Bus) -> None:
    """The server has read everything sent so far."""
    await bus.client.flush()
