"""Finding stored models, without network: a reference → its files → a ModelSpec.

References: the built-in name, `hf:OWNER/NAME[@REVISION][#FILE.gguf]`, a folder, or a `.gguf` file.
"""

import os
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from stages.runtime.models.digest import weights_digest
from stages.runtime.models.errors import ModelError
from stages.runtime.models.folder import folder_model
from stages.runtime.models.gguf import read_gguf
from stages.runtime.models.gguf_model import gguf_model
from stages.runtime.models.jsonfile import read_object
from stages.runtime.models.safetensors_index import weight_files
from stages.runtime.models.spec import ModelSpec

BUILT_IN = "smollm2-135m-instruct"
COMPLETE = ".complete.json"  # written last: a stored folder without it is a pull that was cut short
_HUB = re.compile(
    r"hf:(?P<repo>[\w.-]{1,96}/[\w.-]{1,96})(?:@(?P<revision>[\w./-]{1,128}))?(?:#(?P<file>[\w./ -]+\.gguf))?"
)


@dataclass(frozen=True)
class HubReference:
    """`hf:OWNER/NAME[@REVISION][#FILE.gguf]`, taken apart."""

    repo: str
    revision: str | None
    file: str | None

    @property
    def folder(self) -> str:
        """Name of the folder it is stored in; distinct references never share one."""
        name = f"{self.repo}@{self.revision or 'main'}" + (f"#{self.file}" if self.file else "")
        return "hf--" + name.replace("/", "+")  # none of + @ # can occur in the parts


def cache_dir() -> Path:
    """Where models live: $HEADRACE_CACHE, else the user's cache folder."""
    override = os.environ.get("HEADRACE_CACHE")
    return Path(override) if override else Path(platformdirs.user_cache_dir("headrace"))


def parse_hub(source: str) -> HubReference | None:
    """A hub reference, or None when `source` is not one. Raises ModelError when it is malformed."""
    if not source.startswith("hf:"):
        return None
    match = _HUB.fullmatch(source)
    if match is None or ".." in source:
        raise ModelError(
            f"model {source!r}: expected hf:OWNER/NAME, optionally @REVISION and #FILE.gguf"
        )
    return HubReference(match["repo"], match["revision"], match["file"])


def stored_folder(source: str) -> Path | None:
    """Where a pulled model lies or will lie; None for a path that is used in place."""
    reference = parse_hub(source)
    if reference is not None:
        return cache_dir() / "models" / reference.folder
    return cache_dir() / "models" / BUILT_IN if source == BUILT_IN else None


def resolve(source: str) -> Path:
    """The .gguf file or folder behind `source`. Never uses the network; raises ModelError if missing."""
    stored = stored_folder(source)
    if stored is not None:
        if not (stored / COMPLETE).is_file():
            raise ModelError(
                f"model {source!r} is not in the cache; run: headrace models pull {source}"
            )
        return _weights_in(stored)
    path = Path(source).expanduser()
    if path.is_dir():
        return _weights_in(path.resolve())
    if path.is_file() and path.suffix == ".gguf":
        return path.resolve()
    if path.is_file():
        raise ModelError(
            f"model {source!r}: a folder or a .gguf file is expected; pickles are never read"
        )
    raise ModelError(
        f"model {source!r} is unknown: expected {BUILT_IN}, hf:OWNER/NAME, a folder or a .gguf file"
    )


@dataclass(frozen=True)
class StoredModel:
    """One pulled model in the cache."""

    source: str  # the reference that opens it
    path: Path
    size: int  # bytes


def list_models() -> list[StoredModel]:
    """Every completely pulled model, by name."""
    found: list[StoredModel] = []
    for note in sorted((cache_dir() / "models").glob(f"*/{COMPLETE}")):
        source = str(read_object(note).get("source"))
        found.append(StoredModel(source, _weights_in(note.parent), folder_size(note.parent)))
    return found


def folder_size(folder: Path) -> int:
    """Bytes of all files below `folder`; files that vanish meanwhile count as nothing."""
    total = 0
    for path in folder.rglob("*"):
        with suppress(OSError):
            total += path.stat().st_size if path.is_file() else 0
    return total


def _weights_in(folder: Path) -> Path:
    """A model folder holds either a Hugging Face layout or one GGUF."""
    if (folder / "config.json").is_file():
        return folder
    found = sorted(folder.rglob("*.gguf"))
    return found[0] if len(found) == 1 else folder


def open_model(source: str) -> ModelSpec:
    """Read dimensions and tensor places of a stored model (no weights; tens of ms).

    Raises ModelError when it is missing, damaged, or not something the engine runs. The first opening of a
    path used in place reads all weights once for the digest.
    """
    path = resolve(source)
    config, tensors = folder_model(path) if path.is_dir() else gguf_model(read_gguf(path))
    files = weight_files(path) if path.is_dir() else [path]
    digest = weights_digest(files, cache_dir() / "digests")
    return ModelSpec(name=source, source=path, digest=digest, config=config, tensors=tensors)
