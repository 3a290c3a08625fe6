"""The identity of a model: sha256 over its weight files, computed once and remembered."""

import hashlib
import json
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from stages.runtime.models.errors import ModelError


def file_sha256(path: Path) -> str:
    """sha256 of a file, hex (about 1 GB/s)."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror or error}") from error


def weights_digest(files: Sequence[Path], memory: Path) -> str:
    """One file: its sha256. Several: sha256 over their sorted names and sha256s.

    `memory` is a folder of remembered results. A result holds while size and modification time of each
    file stay the same. It lies apart from the weights, which may be read-only.
    """
    stamp = [[str(path), path.stat().st_size, path.stat().st_mtime_ns] for path in files]
    note = memory / f"{hashlib.sha256(str(files[0]).encode()).hexdigest()}.json"
    with suppress(OSError, ValueError, KeyError, TypeError):
        remembered = json.loads(note.read_text())
        if remembered["files"] == stamp:
            return str(remembered["digest"])
    digest = _compute(files)
    with suppress(OSError):  # a read-only cache costs time, not correctness
        write_atomically(note, json.dumps({"files": stamp, "digest": digest}))
    return digest


def _compute(files: Sequence[Path]) -> str:
    if len(files) == 1:
        return file_sha256(files[0])
    lines = (f"{path.name} {file_sha256(path)}\n" for path in sorted(files))
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def write_atomically(path: Path, text: str) -> None:
    """Write `text` so that a reader sees the old file or the new one, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)
