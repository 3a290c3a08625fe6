"""The state folder: who runs here, and how to reach the bus. All files are of mode 600."""

import fcntl
import os
from pathlib import Path
from typing import IO

from pydantic import BaseModel, ConfigDict, ValidationError

from stages.control.process import Identity
from stages.runtime.launch import BusAddress, write_private


class ProcessRecord(BaseModel):
    """One process of the pipeline."""

    model_config = ConfigDict(frozen=True)

    stage: str
    instance: str
    identity: Identity


class RunState(BaseModel):
    """state.json: written at every change, so that a later `up` or `down` finds what is left."""

    model_config = ConfigDict(frozen=True)

    version: int = 1
    control: Identity
    processes: list[ProcessRecord] = []
    topology_file: str
    config_hash: str
    bus_url: str
    bus_port: int
    grpc: str
    started_ms: float

    def leftovers(self) -> list[ProcessRecord]:
        """Processes that still run."""
        return [one for one in self.processes if one.identity.alive]


class StateFolder:
    """Paths under the state folder."""

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()

    @property
    def bus_file(self) -> Path:
        """Address and password of the internal bus user (JSON of BusAddress)."""
        return self.root / "bus.json"

    def log(self, instance: str) -> Path:
        """Where a process writes."""
        return self.root / "logs" / f"{instance}.log"

    def launch(self, instance: str) -> Path:
        """What a process is told."""
        return self.root / "run" / f"{instance}.json"

    @property
    def nats(self) -> Path:
        """nats-server's config and store."""
        return self.root / "nats"

    def make(self) -> None:
        """Create the folder, readable by its owner only."""
        self.root.mkdir(parents=True, exist_ok=True)
        self.root.chmod(0o700)
        for name in ("logs", "run", "nats"):
            (self.root / name).mkdir(exist_ok=True)

    def read(self) -> RunState | None:
        """The state as last written; None when there is none that can be read."""
        try:
            return RunState.model_validate_json((self.root / "state.json").read_bytes())
        except (OSError, ValidationError):
            return None

    def write(self, state: RunState) -> None:
        """Replace the state."""
        write_private(self.root / "state.json", state.model_dump_json(indent=1))

    def clear(self) -> None:
        """Nothing runs here any more."""
        for name in ("state.json", "bus.json"):
            (self.root / name).unlink(missing_ok=True)
        for launch in (self.root / "run").glob("*.json"):
            launch.unlink(missing_ok=True)

    def read_bus(self) -> BusAddress | None:
        """How tools of the owner reach the bus; None when nothing runs."""
        try:
            return BusAddress.model_validate_json(self.bus_file.read_bytes())
        except (OSError, ValidationError):
            return None

    def running(self) -> RunState | None:
        """The state, if its control process is alive."""
        state = self.read()
        return state if state is not None and state.control.alive else None

    def holding_ports(self) -> RunState | None:
        """The state, if anything of ours still runs: control, or what a killed one left."""
        state = self.read()
        return state if state is not None and (state.control.alive or state.leftovers()) else None

    def lock(self) -> IO[str] | None:
        """Hold the folder for as long as the file stays open; None when another control does."""
        path = self.root / "control.lock"
        file = os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), "w")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            return None
        return file
