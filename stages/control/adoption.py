"""What an earlier control left: who still runs, who has ended meanwhile, who was never written down."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from stages.control.order import BUS
from stages.control.process import Identity, identify
from stages.control.state import ProcessRecord, RunState, StateFolder
from stages.runtime.launch import Launch

_PROC: Final = Path("/proc")
_FLAGS: Final = (b"--launch", b"-c")


@dataclass(frozen=True)
class Found:
    """The processes of one state folder."""

    state: RunState | None
    living: list[ProcessRecord]
    ended: list[ProcessRecord]  # written down as running, but not running any more
    looked_ms: float = 0.0  # when a control last looked after them, unix ms

    @property
    def names(self) -> str:
        """The living ones, for messages."""
        return ", ".join(one.instance for one in self.living)


def find(folder: StateFolder) -> Found:
    """By the records of state.json, and by the files that processes of this folder are started with.

    The latter finds a child whose control was killed between the spawn and the record.
    """
    state = folder.read()
    records = state.processes if state is not None else []
    living = [one for one in records if one.identity.alive]
    known = {one.identity for one in living}
    living += [one for one in _started(folder) if one.identity not in known]
    ended = [one for one in records if not one.identity.alive]
    looked_ms = folder.pulse.stat().st_mtime * 1000 if folder.pulse.exists() else 0.0
    return Found(state, living, ended, looked_ms)


def _started(folder: StateFolder) -> Iterator[ProcessRecord]:
    """Running processes whose command line names a launch file of this folder, or its nats.conf."""
    runs, config = folder.root / "run", folder.nats / "nats.conf"
    for flag, file, identity in _with_files():
        if flag == b"-c" and file == config:
            yield ProcessRecord(stage=BUS, instance=BUS, identity=identity, incarnation=BUS)
        elif flag == b"--launch" and file.parent == runs:
            yield _record(file, identity)


def _with_files() -> Iterator[tuple[bytes, Path, Identity]]:
    """(flag, its value, process) of all processes that have one of the flags."""
    for entry in _PROC.iterdir():
        if not entry.name.isdigit():
            continue
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:  # it has ended
            continue
        for flag, value in pairwise(words):
            identity = identify(int(entry.name)) if flag in _FLAGS else None
            if identity is not None:
                yield flag, Path(value.decode(errors="replace")), identity


def _record(file: Path, identity: Identity) -> ProcessRecord:
    """What its launch file says; it is written just before the process starts."""
    try:
        launch = Launch.model_validate_json(file.read_bytes())
    except (OSError, ValidationError):
        return ProcessRecord(stage="?", instance=file.stem, identity=identity)
    return ProcessRecord(
        stage=launch.stage,
        instance=launch.instance,
        identity=identity,
        incarnation=launch.incarnation,
        pool=launch.pool,
        spawned_ms=launch.spawned_ms,
        generation=launch.generation,
    )
