"""Log files of the processes: one each, the previous one kept, none without bound."""

import os
import shutil
from pathlib import Path
from typing import Final

MOST_BYTES: Final = 16 << 20
_TAIL_BYTES: Final = 8192


def previous(log: Path) -> Path:
    """Where the log of the run before lies."""
    return log.with_name(f"{log.name}.1")


def fresh_log(log: Path) -> None:
    """Begin a new file; what was there becomes the previous one."""
    log.parent.mkdir(parents=True, exist_ok=True)
    if log.exists() and log.stat().st_size > 0:
        log.replace(previous(log))


def bound_log(log: Path) -> None:
    """Move the text of a log that has grown too large away while its process keeps writing.

    The process appends (O_APPEND), so it goes on at the new end. Lines written between the copy and
    the cut are lost.
    """
    if log.exists() and log.stat().st_size > MOST_BYTES:
        shutil.copyfile(log, previous(log))
        os.truncate(log, 0)


def tail(log: Path, lines: int = 8) -> list[str]:
    """The last lines, for messages; empty when there is no log."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _TAIL_BYTES))
            text = file.read().decode(errors="replace")
    except OSError:
        return []
    return [line.rstrip() for line in text.splitlines() if line.strip()][-lines:]
