"""One operating-system process: started in its own session, identified beyond doubt, ended by pid."""

import asyncio
import contextlib
import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict

_PROC: Final = Path("/proc")


class Identity(BaseModel):
    """A process, told apart from a later one that got the same pid."""

    model_config = ConfigDict(frozen=True)

    pid: int
    start_ticks: int
    boot_id: str

    @property
    def alive(self) -> bool:
        """Whether exactly this process still runs (a zombie does not)."""
        return identify(self.pid) == self

    def send(self, number: signal.Signals) -> None:
        """Signal it, unless it has ended."""
        if self.alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)


def identify(pid: int) -> Identity | None:
    """The running process with this pid; None when there is none (or only its zombie)."""
    try:
        stat = (_PROC / str(pid) / "stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = stat.rpartition(")")[2].split()  # the name before it may hold spaces and brackets
    if fields[0] in "ZX":
        return None
    return Identity(pid=pid, start_ticks=int(fields[19]), boot_id=_boot_id())


def _boot_id() -> str:
    try:
        return (_PROC / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


class Child:
    """A process that control started."""

    def __init__(self, process: asyncio.subprocess.Process, identity: Identity | None) -> None:
        self._process = process
        self.identity = identity

    @classmethod
    async def start(cls, command: Sequence[str], env: Mapping[str, str], log: Path) -> "Child":
        """Start with stdin closed and both outputs appended to `log`."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        output = os.open(log, flags, 0o600)
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**os.environ, **env},
                start_new_session=True,
            )
        finally:
            os.close(output)
        return cls(process, identify(process.pid))

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    async def wait(self) -> int:
        """Its exit code; negative for a signal."""
        return await self._process.wait()

    def terminate(self) -> None:
        """Ask it to end."""
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()

    def kill(self) -> None:
        """End it at once."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()

    async def end(self, grace_s: float) -> int:
        """SIGTERM, then SIGKILL when it is still there after `grace_s`."""
        self.terminate()
        try:
            return await asyncio.wait_for(asyncio.shield(self.wait()), grace_s)
        except TimeoutError:
            self.kill()
            return await self.wait()


async def end_all(processes: Sequence[Identity], grace_s: float) -> None:
    """End processes that are not our children: SIGTERM, then SIGKILL after `grace_s`."""
    for each in processes:
        each.send(signal.SIGTERM)
    deadline = asyncio.get_running_loop().time() + grace_s
    while any(each.alive for each in processes):
        if asyncio.get_running_loop().time() > deadline:
            for each in processes:
                each.send(signal.SIGKILL)
            deadline += grace_s
        await asyncio.sleep(0.02)
