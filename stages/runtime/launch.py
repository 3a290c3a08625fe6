"""What a process is told at its start, in a file of mode 600: no secret in argv or environment."""

import argparse
import os
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field


class BusAddress(BaseModel):
    """How to reach the bus."""

    model_config = ConfigDict(frozen=True)

    url: str
    user: str
    password: str = Field(repr=False)
    inbox: str = "hr.inbox"  # prefix of the subjects on which this user hears answers
    # ingress only: signs the NATS users of tenants (an account's nkey seed)
    issuer: str | None = Field(None, repr=False)


class Launch(BaseModel):
    """One process: who it is, where the bus and its state folder are."""

    model_config = ConfigDict(frozen=True)

    stage: str
    instance: str
    incarnation: str
    bus: BusAddress
    state: Path
    spawned_ms: float
    pool: str | None = None
    generation: int = 0  # of the topology that it is started for, or a later one

    def write(self, path: Path) -> None:
        """Store with mode 600."""
        write_private(path, self.model_dump_json(indent=1))


def write_private(path: Path, text: str) -> None:
    """Write a file that only its owner can read, atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(text)
    draft.replace(path)


def read_launch(stage: str) -> Launch:
    """Parse `--launch FILE` of a stage's command line."""
    parser = argparse.ArgumentParser(
        prog=f"python -m {stage}", description="Started by `headrace up`; not meant for hands."
    )
    parser.add_argument("--launch", type=Path, required=True, help="launch file (JSON)")
    return Launch.model_validate_json(parser.parse_args().launch.read_bytes())
