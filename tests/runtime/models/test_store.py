"""References, the cache, and the `headrace models` command."""

import json
import os
import socket
from pathlib import Path

import pytest
from typer.testing import CliRunner

from stages.cli.models import app
from stages.runtime.models import digest
from stages.runtime.models.artifacts import load_tokenizer
from stages.runtime.models.errors import ModelError
from stages.runtime.models.spec import ModelSpec
from stages.runtime.models.store import BUILT_IN, list_models, open_model, parse_hub, resolve
from tests.runtime.models import tiny


def test_missing_models_say_how_to_get_them(cache: Path) -> None:
    for source in (BUILT_IN, "hf:owner/name"):
        with pytest.raises(ModelError, match=f"run: headrace models pull {source}"):
            resolve(source)
    with pytest.raises(ModelError, match="expected smollm2-135m-instruct, hf:OWNER/NAME, a folder"):
        resolve("gpt-17")
    assert list_models() == []


def test_pickles_are_no_models(tmp_path: Path) -> None:
    path = tmp_path / "model.bin"
    path.write_bytes(b"x")
    with pytest.raises(ModelError, match="pickles are never read"):
        resolve(str(path))


@pytest.mark.parametrize(
    "source", ["hf:", "hf:x", "hf:a/b/c", "hf:../x", "hf:a/b@", "hf:a/b#../x.gguf", "hf:a/b c"]
)
def test_malformed_hub_references(source: str) -> None:
    with pytest.raises(ModelError, match="expected hf:OWNER/NAME"):
        parse_hub(source)


def test_hub_references_never_share_a_folder() -> None:
    sources = [
        "hf:a/b",
        "hf:a/b@v1",
        "hf:a/b@main#x.gguf",
        "hf:a/b--v1",
        "hf:a/b@x/y",
        "hf:a/b--v1@x",
        "hf:a/b@v1--x",
    ]
    references = [parse_hub(source) for source in sources]
    folders = {reference.folder for reference in references if reference}
    assert len(folders) == len(sources)
    assert all("/" not in folder for folder in folders)


def test_opening_reads_no_weights_and_needs_no_network(
    built_in: ModelSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise AssertionError("neither weights nor network are needed")

    monkeypatch.setattr(digest, "file_sha256", refused)
    monkeypatch.setattr(socket, "socket", refused)
    assert open_model(BUILT_IN) == built_in
    assert built_in.digest == "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def test_a_read_only_cache_still_opens_files_in_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("HEADRACE_CACHE", str(blocked / "below"))
    spec = open_model(str(tiny.write_gguf(tmp_path / "m.gguf")))
    assert load_tokenizer(spec).encode("hell") == [_id("hell")]


def _id(name: str) -> int:
    return tiny.vocabulary().index(name)


def test_digest_is_remembered_until_the_file_changes(tmp_path: Path, cache: Path) -> None:
    path = tiny.write_gguf(tmp_path / "m.gguf")
    before = open_model(str(path)).digest
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(1, 1))
    assert open_model(str(path)).digest != before


def test_a_folder_with_one_gguf_is_that_gguf(tmp_path: Path, cache: Path) -> None:
    path = tiny.write_gguf(tmp_path / "m.gguf")
    assert open_model(str(tmp_path)).source == path


def test_gguf_tokenizer_refusals_and_bos(tmp_path: Path, cache: Path) -> None:
    path = tiny.write_gguf(tmp_path / "a.gguf", changes={"tokenizer.ggml.add_bos_token": True})
    tokenizer = load_tokenizer(open_model(str(path)))
    assert tokenizer.encode_prompt("hell") == [1, _id("hell")]
    for changes in ({"tokenizer.ggml.pre": "qwen2"}, {"tokenizer.ggml.model": "llama"}):
        path = tiny.write_gguf(tmp_path / "b.gguf", changes=changes)
        with pytest.raises(ModelError, match="supported: 'gpt2' with 'smollm', 'gpt-2'"):
            load_tokenizer(open_model(str(path)))
    path = tiny.write_gguf(tmp_path / "c.gguf", changes={"tokenizer.ggml.merges": ["zz yy"]})
    with pytest.raises(ModelError, match="'zz yy' is not in the vocabulary"):
        load_tokenizer(open_model(str(path)))


def test_show_prints_what_matters(built_in: ModelSpec) -> None:
    runner = CliRunner()
    shown = runner.invoke(app, ["show", BUILT_IN, "--json"])
    facts = json.loads(shown.stdout)
    assert shown.exit_code == 0
    assert facts["parameters"] == 134_515_008
    assert facts["kv_bytes_per_token"] == 46_080
    assert facts["encodings"] == {"Q4_1": 210, "F32": 61, "Q8_0": 1}
    assert facts["license"] == "apache-2.0"
    table = runner.invoke(app, ["show"])
    assert "134,515,008" in table.stdout
    assert "8,192" in table.stdout


def test_pull_and_list_commands(built_in: ModelSpec) -> None:
    runner = CliRunner()
    pulled = runner.invoke(app, ["pull"])
    assert pulled.exit_code == 0
    assert "ready" in pulled.stdout
    rows = json.loads(runner.invoke(app, ["list", "--json"]).stdout)
    assert (BUILT_IN, str(built_in.source)) in {(row["model"], row["path"]) for row in rows}
    assert BUILT_IN in runner.invoke(app, ["list"]).stdout


def test_exit_codes(cache: Path) -> None:
    runner = CliRunner()
    missing = runner.invoke(app, ["show", "hf:a/b"])
    assert missing.exit_code == 1
    assert missing.stderr.startswith("model ")
    assert runner.invoke(app, ["show", "--nonsense"]).exit_code == 2
    assert runner.invoke(app, ["pull", "--help"]).exit_code == 0
    assert "headrace models pull" in runner.invoke(app, ["list"]).stdout
