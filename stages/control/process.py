"""One operating-system process: started in its own session, identified beyond doubt, ended by pid."""

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Protocol

from pydantic import BaseModel, ConfigDict

KILL_S: Final = 10.0  # after SIGKILL only the kernel can keep a process
_PROC: Final = Path("/proc")

log = logging.getLogger("headrace.control")


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


class Running(Protocol):
    """A process that control looks after."""

    @property
    def identity(self) -> Identity | None:
        """Who it is; None when it had ended before that could be seen."""

    @property
    def pid(self) -> int:
        """Its process id."""

    async def wait(self) -> int | None:
        """Its exit code, negative for a signal; None when nobody can know it."""

    def terminate(self) -> None:
        """Ask it to end."""

    def kill(self) -> None:
        """End it at once."""


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
        try:
            return cls(process, identify(process.pid))
        except OSError:  # no more files: a child that nobody knows must not live
            process.kill()
            await process.wait()
            raise

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


class Adopted:
    """A process that an earlier control started: its end is noticed, its exit code is not told."""

    def __init__(self, identity: Identity, handle: int) -> None:
        self.identity = identity
        self._handle = handle
        self._ended = asyncio.Event()
        self._code: int | None = None
        asyncio.get_running_loop().add_reader(handle, self._on_end)

    @classmethod
    def watch(cls, identity: Identity) -> "Adopted | None":
        """Take it over; None when it has ended."""
        try:
            handle = os.pidfd_open(identity.pid)
        except ProcessLookupError:
            return None
        if not identity.alive:  # its pid may have become another's before it was opened
            os.close(handle)
            return None
        return cls(identity, handle)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.identity.pid

    def _on_end(self) -> None:
        asyncio.get_running_loop().remove_reader(self._handle)
        os.close(self._handle)
        self._ended.set()

    async def wait(self) -> int | None:
        """0 when it ended after it was asked to, -9 when it was killed here, else None."""
        await self._ended.wait()
        return self._code

    def terminate(self) -> None:
        """Ask it to end."""
        self._send(signal.SIGTERM, 0)

    def kill(self) -> None:
        """End it at once."""
        self._send(signal.SIGKILL, -signal.SIGKILL)

    def _send(self, number: signal.Signals, code: int) -> None:
        if self._ended.is_set():
            return
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._handle, number)
            self._code = code


async def end(process: Running, grace_s: float) -> None:
    """SIGTERM, then SIGKILL when it is still there after `grace_s`; then `KILL_S` at most."""
    exiting = asyncio.ensure_future(process.wait())
    for send, wait_s in ((process.terminate, grace_s), (process.kill, KILL_S)):
        send()
        if (await asyncio.wait({exiting}, timeout=wait_s))[0]:
            return
    log.error("pid %d did not end %.0f s after SIGKILL", process.pid, KILL_S)


async def end_all(processes: Sequence[Identity], grace_s: float) -> list[Identity]:
    """End processes that are not our children: SIGTERM, then SIGKILL after `grace_s`.

    Returns those that are still there `KILL_S` after SIGKILL (the kernel holds them, for example
    in a read from a disk that does not answer).
    """
    left = list(processes)
    for number, wait_s in ((signal.SIGTERM, grace_s), (signal.SIGKILL, KILL_S)):
        for each in left:
            each.send(number)
        deadline = asyncio.get_running_loop().time() + wait_s
        while left and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0.02)
            left = [each for each in left if each.alive]
    return left
