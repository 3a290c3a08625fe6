"""`python -m stages.control.watchdog`: starts control, and starts it again when it ends abnormally.

Started by `headrace up`, and by control when its watchdog has died (then with `--adopt`: it looks
after the control that runs). The standard library only: it starts at once and needs little memory.
Control's end was in order when it has cleared its state (`state.json` is gone).
"""

import contextlib
import fcntl
import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import IO, Any, Final

FIRST_S: Final = 0.2
MOST_S: Final = 10.0
HEALTHY_S: Final = 30.0
HUNG_S: Final = 30.0  # control touches its pulse each second
LOOK_S: Final = 1.0
PACE_S: Final = 3.0  # a look that is later than this says nothing about control

TAKEN: Final = 2  # exit codes: another one is here
START_FAILED: Final = 3  # of control: it has told why, and has ended what it had started
USAGE: Final = "--control MODULE --topology FILE --state DIR [--adopt]"


def start_ticks(pid: int) -> int | None:
    """When this process began, which tells it apart from a later one; None when it has ended."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else int(fields[19])


class Watchdog:
    """Looks after the one control of a state folder."""

    def __init__(self, module: str, topology: Path, folder: Path) -> None:
        self._module = module
        self._topology = topology
        self._folder = folder
        self._stopping = False
        self._child: subprocess.Popen[bytes] | None = None
        self._handle: int | None = None
        self._failures = 0
        self._note: dict[str, Any] = {"restarts": 0, "in_a_row": 0, "last_error": None}
        self._pulse: tuple[int, float] = (0, 0.0)
        self._hung = False

    def run(self, adopt: bool) -> int:
        """Until control has ended in order; returns its exit code, as far as it is known."""
        if adopt:
            self._read_note()
            self._adopt()
        if self._handle is None:
            self._start(resume=adopt)
        while True:
            began = time.monotonic()
            why, code = self._until_ended()
            if self._stopping or self._in_order(code):
                return code or 0
            if time.monotonic() - began >= HEALTHY_S:
                self._failures = 0
            self._failures += 1
            self._tell(why)
            if not self._pause(min(FIRST_S * 2.0 ** min(self._failures - 1, 16), MOST_S)):
                return 0
            self._adopt()  # somebody may have started one meanwhile
            if self._handle is None:
                self._start(resume=True)

    def _start(self, resume: bool) -> None:
        command = [sys.executable, "-P", "-m", self._module, "--topology", str(self._topology)]
        command += ["--state", str(self._folder), "--watched", *(["--resume"] if resume else [])]
        self._child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=sys.stderr, start_new_session=True
        )
        self._watch(self._child.pid)

    def _adopt(self) -> None:
        """Look after the control that holds the folder, if one lives."""
        try:
            signed = json.loads((self._folder / "control.lock").read_bytes())
            pid, ticks = int(signed["pid"]), int(signed["start_ticks"])
        except (OSError, ValueError, LookupError, TypeError):
            return
        if start_ticks(pid) != ticks:
            return
        self._child = None
        with contextlib.suppress(ProcessLookupError):
            self._watch(pid)
        if self._handle is not None and start_ticks(pid) != ticks:
            os.close(self._handle)
            self._handle = None

    def _watch(self, pid: int) -> None:
        self._handle = os.pidfd_open(pid)
        self._hung = False
        self._pulse = (self._beaten(), 0.0)

    def _until_ended(self) -> tuple[str, int | None]:
        """Wait for its end; returns how it ended, in words and as a code."""
        assert self._handle is not None
        looked = time.monotonic()
        while not wait([self._handle], LOOK_S):
            if self._stopping:
                self._send(signal.SIGTERM)
                while not wait([self._handle], LOOK_S):
                    pass  # `headrace down` kills both when this takes too long
                break
            now = time.monotonic()
            self._end_hung(now, now - looked)
            looked = now
        os.close(self._handle)
        self._handle = None
        if self._child is None:
            return "ended; how is not known, an earlier watchdog had started it", None
        code = self._child.wait()
        if self._hung:
            return f"did not work for {HUNG_S:.0f} s and was killed", code
        return f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}", code

    def _end_hung(self, now: float, passed: float) -> None:
        """Kill a control that does not touch its pulse any more, unless we were late ourselves."""
        beaten = self._beaten()
        seen, since = self._pulse
        if beaten != seen or passed > PACE_S:
            self._pulse = (beaten, now if beaten != seen or since else 0.0)
        elif since and now - since > HUNG_S:
            self._hung = True
            self._send(signal.SIGKILL)

    def _send(self, number: signal.Signals) -> None:
        assert self._handle is not None
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._handle, number)

    def _beaten(self) -> int:
        try:
            return (self._folder / "control.pulse").stat().st_mtime_ns
        except OSError:
            return 0

    def _in_order(self, code: int | None) -> bool:
        """Whether it has said its last word. (Killed before it wrote its state is not in order.)"""
        killed = code is not None and code < 0
        cleared = not killed and not (self._folder / "state.json").exists()
        return cleared or code in (0, START_FAILED)

    def _tell(self, why: str) -> None:
        """Write down what happened, for `headrace status` and `headrace up`."""
        delay = min(FIRST_S * 2.0 ** min(self._failures - 1, 16), MOST_S)
        self._note = {
            "restarts": self._note["restarts"] + 1,
            "in_a_row": self._failures,
            "last_error": f"control {why}",
            "at_ms": time.time() * 1000,
        }
        event = {"event": "control", "reason": why, "ms": delay * 1000}
        draft = self._folder / f".watchdog.json.{os.getpid()}"
        with contextlib.suppress(OSError):  # a full disk is no reason to leave control dead
            write(draft, os.O_TRUNC, json.dumps(self._note))
            draft.replace(self._folder / "watchdog.json")
            write(self._folder / "progress.jsonl", os.O_APPEND, json.dumps(event) + "\n")
        print(f"watchdog: control {why}; again in {delay:.1f} s", file=sys.stderr, flush=True)

    def _read_note(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._note |= json.loads((self._folder / "watchdog.json").read_bytes())
            self._failures = int(self._note["in_a_row"])

    def _pause(self, seconds: float) -> bool:
        """Whether to go on afterwards."""
        wait([], seconds)
        return not self._stopping

    def stop(self, _number: int, _frame: object) -> None:
        """SIGTERM: control shall stop, and is not started again."""
        self._stopping = True


def write(path: Path, flags: int, text: str) -> None:
    """Write a file that only its owner can read, at once."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | flags, 0o600)
    try:
        os.write(handle, text.encode())
    finally:
        os.close(handle)


def wait(handles: list[int], seconds: float) -> bool:
    """Whether one of them could be read before the time was over or a signal came."""
    poller = select.poll()
    for handle in (*handles, _WAKE[0]):
        poller.register(handle, select.POLLIN)
    ready = [handle for handle, _ in poller.poll(seconds * 1000)]
    if _WAKE[0] in ready:
        os.read(_WAKE[0], 64)
    return any(handle in handles for handle in ready)


_WAKE: Final = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)


def lock(folder: Path) -> IO[str] | None:
    """Be the folder's watchdog for as long as the file stays open; None when another is."""
    file = os.fdopen(os.open(folder / "watchdog.lock", os.O_RDWR | os.O_CREAT, 0o600), "r+")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return None
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    me = {"pid": os.getpid(), "start_ticks": start_ticks(os.getpid()), "boot_id": boot}
    file.truncate()
    file.write(json.dumps(me))
    file.flush()
    return file


def main(words: list[str]) -> int:
    """Parse the command line by hand: argparse would double the time of the start."""
    adopt = "--adopt" in words
    words = [word for word in words if word != "--adopt"]
    given = dict(zip(words[::2], words[1::2], strict=False))
    if set(given) != {"--control", "--topology", "--state"}:
        print(f"usage: python -m stages.control.watchdog {USAGE}", file=sys.stderr)
        return TAKEN
    folder = Path(given["--state"])
    watchdog = Watchdog(given["--control"], Path(given["--topology"]), folder)
    signal.set_wakeup_fd(_WAKE[1])
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, watchdog.stop)
    with lock(folder) or contextlib.nullcontext() as held:
        if held is None:
            return TAKEN
        if not adopt:
            for name in ("progress.jsonl", "watchdog.json", "control.pulse"):
                (folder / name).unlink(missing_ok=True)
        with contextlib.suppress(BrokenPipeError):
            print("watching", flush=True)  # to `headrace up`, which reads no more than this
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return watchdog.run(adopt)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
