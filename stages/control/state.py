"""The state folder: who runs here, and how to reach the bus. All files are of mode 600."""

import fcntl
import os
from pathlib import Path
from typing import IO, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from contracts.lifecycle import Generation
from stages.control.order import ProcessSpec
from stages.control.process import Identity, identify
from stages.runtime.launch import BusAddress, write_private

Role = Literal["up", "watchdog", "control"]


class ProcessRecord(BaseModel):
    """One process of the pipeline, with all that a restarted control needs to take it over."""

    model_config = ConfigDict(frozen=True)

    stage: str
    instance: str
    identity: Identity
    incarnation: str = ""
    pool: str | None = None
    spec: ProcessSpec | None = None  # None: nats-server, or known by its launch file only
    spawned_ms: float = 0.0
    generation: int = 0
    restarts: int = 0
    last_error: str | None = None


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
    http: str = ""
    started_ms: float
    ready_s: float | None = None  # None until everything was ready for the first time
    watchdogs: int = 0  # how often the watchdog was started anew

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

    @property
    def progress(self) -> Path:
        """What control tells `headrace up`, one JSON object a line."""
        return self.root / "progress.jsonl"

    @property
    def watchdog(self) -> Path:
        """How often the watchdog had to start control again, and why last (watchdog.py)."""
        return self.root / "watchdog.json"

    @property
    def watch(self) -> Path:
        """There while the topology file is followed (`up --watch`), also by a later control."""
        return self.root / "watch"

    @property
    def pulse(self) -> Path:
        """Touched by control each second."""
        return self.root / "control.pulse"

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

    def read_generation(self) -> Generation | None:
        """The topology that ran last; None when nothing that can be read is left."""
        try:
            return Generation.model_validate_json((self.root / "generation.json").read_bytes())
        except (OSError, ValidationError):
            return None

    def write_generation(self, generation: Generation) -> None:
        """Keep what serves now, for a control that starts again while the bus is away."""
        write_private(self.root / "generation.json", generation.model_dump_json())

    def clear(self) -> None:
        """Nothing runs here any more."""
        for name in ("state.json", "bus.json", "generation.json", "watchdog.json", "control.pulse"):
            (self.root / name).unlink(missing_ok=True)
        for launch in (self.root / "run").glob("*.json"):
            launch.unlink(missing_ok=True)

    def read_bus(self) -> BusAddress | None:
        """How tools of the owner reach the bus; None when nothing runs."""
        try:
            return BusAddress.model_validate_json(self.bus_file.read_bytes())
        except (OSError, ValidationError):
            return None

    def looked_after(self) -> Identity | None:
        """The control or watchdog that is on here, also before and after it has a state."""
        return self.holder("control") or self.holder("watchdog")

    def running(self) -> RunState | None:
        """The state, if its control process is alive."""
        state = self.read()
        return state if state is not None and state.control.alive else None

    def holding_ports(self) -> RunState | None:
        """The state, if anything of ours still runs: control, or what a killed one left."""
        state = self.read()
        return state if state is not None and (state.control.alive or state.leftovers()) else None

    def lock(self, role: Role = "control", sign: bool = True) -> IO[str] | None:
        """Have a role here for as long as the file stays open; None when another has it.

        Signed, it says who has it (`holder`), for signals. It ends with the process, however that
        ends.
        """
        path = self.root / f"{role}.lock"
        file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "r+")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            return None
        if sign:
            me = identify(os.getpid())
            assert me is not None
            file.truncate()
            file.write(me.model_dump_json())
            file.flush()
        return file

    def holder(self, role: Role) -> Identity | None:
        """The living process that has the role, as far as it has signed."""
        try:
            signed = Identity.model_validate_json((self.root / f"{role}.lock").read_bytes())
        except (OSError, ValidationError):
            return None
        return signed if signed.alive else None
