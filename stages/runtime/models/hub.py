"""Fetching a model repository through huggingface_hub. HF_ENDPOINT, HF_TOKEN and HF_HUB_OFFLINE apply.

Imports huggingface_hub (0.35 s), so only `pull` imports this module.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath

import httpx2
from huggingface_hub import HfApi, get_token, hf_hub_url
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.file_download import http_get
from huggingface_hub.utils.tqdm import disable_progress_bars

from stages.runtime.models.digest import file_sha256, write_atomically
from stages.runtime.models.errors import ModelError
from stages.runtime.models.store import HubReference

# never *.bin, *.pt and the like: pickles run code when they are opened
_FOLDER_PATTERNS = ("*.safetensors", "*.safetensors.index.json", "*.json", "*.jinja", "LICENSE*")
_COMMIT = ".commit"  # in a model's folder: which version its files are of


@dataclass(frozen=True)
class HubFile:
    """One file to fetch."""

    name: str  # path in the repository
    size: int  # bytes
    sha256: str | None  # the hub knows it for large files only


@dataclass(frozen=True)
class HubPlan:
    """What to fetch, of one commit."""

    commit: str
    files: tuple[HubFile, ...]

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)


def plan_hub(reference: HubReference) -> HubPlan:
    """Ask the hub what the repository holds and choose the files. Raises ModelError."""
    with _clear_errors(reference):
        api = HfApi(endpoint=_endpoint())
        info = api.model_info(reference.repo, revision=reference.revision, files_metadata=True)
    listed = {
        item.rfilename: HubFile(
            item.rfilename, item.size or 0, item.lfs.sha256 if item.lfs else None
        )
        for item in info.siblings or []
    }
    files = tuple(listed[name] for name in _choose(reference, sorted(listed)))
    return HubPlan(str(info.sha), files)


def _choose(reference: HubReference, names: list[str]) -> list[str]:
    """Safetensors at the top of the repository if there are any, else the one GGUF."""
    ggufs = [name for name in names if name.endswith(".gguf")]
    if reference.file is not None:
        if reference.file in ggufs:
            return [reference.file]
        raise _refusal(reference, f"no file {reference.file!r}; it has {_listed(ggufs)}")
    if any(name.endswith(".safetensors") and "/" not in name for name in names):
        top = [name for name in names if "/" not in name]
        return [name for name in top if any(fnmatch(name, pattern) for pattern in _FOLDER_PATTERNS)]
    if len(ggufs) == 1:
        return ggufs
    if ggufs:
        raise _refusal(reference, f"several GGUF files; add #FILE: {_listed(ggufs)}")
    raise _refusal(reference, "neither safetensors nor GGUF files; pickled weights are never read")


def _listed(names: list[str]) -> str:
    return ", ".join(names[:20]) or "no GGUF files"


def fetch_from_hub(reference: HubReference, plan: HubPlan, folder: Path) -> None:
    """Download the planned files into `folder`, resuming partial ones. Raises ModelError.

    What an earlier pull left of another commit is thrown away: branches move, versions never mix.
    `snapshot_download` would start a file anew after a killed pull, so the files are fetched one by one
    with the library's own transfer function, which goes on where a part ends.
    """
    disable_progress_bars()  # ours is drawn instead
    _keep_only(plan.commit, folder)
    for file in plan.files:
        target = (
            folder / PurePosixPath(file.name).name
        )  # a name from the hub cannot leave the folder
        if not target.is_file():
            part = folder / f"{target.name}.part"
            with _clear_errors(reference):
                _download(reference, plan.commit, file, part)
            _check(reference, file, part)
            part.replace(target)


def _keep_only(commit: str, folder: Path) -> None:
    """Empty the folder unless its files are known to be of this commit."""
    note = folder / _COMMIT
    if not (note.is_file() and note.read_text() == commit):
        shutil.rmtree(folder, ignore_errors=True)
        write_atomically(note, commit)


def _download(reference: HubReference, commit: str, file: HubFile, part: Path) -> None:
    url = hf_hub_url(reference.repo, file.name, revision=commit, endpoint=_endpoint())
    token = get_token()  # HF_TOKEN, or what `hf auth login` left
    headers = {"authorization": f"Bearer {token}"} if token else {}
    with part.open("ab") as out:
        http_get(url, out, resume_size=out.tell(), headers=headers, expected_size=file.size)


def _check(reference: HubReference, file: HubFile, part: Path) -> None:
    if file.sha256 is not None and file_sha256(part) != file.sha256:
        part.unlink()
        raise _refusal(reference, f"{file.name} arrived damaged (sha256 differs); pull again")


def _endpoint() -> str | None:
    return os.environ.get("HF_ENDPOINT") or None


@contextmanager
def _clear_errors(reference: HubReference) -> Iterator[None]:
    try:
        yield
    except GatedRepoError as error:
        raise _refusal(reference, "gated: accept its terms on the hub and set HF_TOKEN") from error
    except RevisionNotFoundError as error:
        raise _refusal(reference, f"no revision {reference.revision!r}") from error
    except RepositoryNotFoundError as error:
        raise _refusal(
            reference, "not found, or private: check the name, or set HF_TOKEN"
        ) from error
    except OfflineModeIsEnabled as error:
        raise _refusal(reference, "HF_HUB_OFFLINE is set; unset it to pull") from error
    except HfHubHTTPError as error:
        raise _refusal(
            reference, f"the hub answered: {str(error).splitlines()[0][:200]}"
        ) from error
    except (httpx2.HTTPError, OSError) as error:
        raise _refusal(
            reference,
            f"the hub is not reachable ({_reason(error)}). Pull again when online: what has arrived is "
            "kept. HF_ENDPOINT chooses another hub",
        ) from error
    except HFValidationError as error:
        raise _refusal(reference, str(error)[:200]) from error


def _reason(error: Exception) -> str:
    return (str(error).splitlines() or [""])[0][:200] or type(error).__name__


def _refusal(reference: HubReference, reason: str) -> ModelError:
    return ModelError(f"hf:{reference.repo}: {reason}")
