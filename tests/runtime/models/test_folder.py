"""Folders of safetensors: what is read, and what is refused."""

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stages.runtime.models.artifacts import load_template, load_tokenizer
from stages.runtime.models.errors import ModelError
from stages.runtime.models.folder import folder_model
from stages.runtime.models.safetensors_index import read_index
from stages.runtime.models.store import open_model
from tests.runtime.models import tiny


@pytest.mark.parametrize("shards", [1, 3])
def test_opens_with_all_bytes_in_place(tmp_path: Path, cache: Path, shards: int) -> None:
    spec = open_model(str(tiny.write_folder(tmp_path / "m", shards=shards)))
    assert spec.config == tiny.CONFIG
    for name, expected in tiny.weights().items():
        entry = spec.tensors[name]
        data = entry.file.read_bytes()[entry.offset : entry.offset + entry.nbytes]
        assert np.array_equal(np.frombuffer(data, "<f4").reshape(entry.shape), expected)
        assert not entry.rope_interleaved
    tokenizer = load_tokenizer(spec)
    assert tokenizer.decode(tokenizer.encode("hello")) == "hello"
    assert load_template(spec).render([("user", " hi ")], generation_prompt=False) == (
        "<|im_start|>user\nhi<|im_end|>\n"
    )


def test_end_tokens_come_from_both_configs(tmp_path: Path) -> None:
    folder = tiny.write_folder(tmp_path / "m")
    tiny.write_json(folder / "generation_config.json", {"eos_token_id": [2, 0]})
    assert folder_model(folder)[0].eos_ids == (0, 2)


def test_digest_follows_the_weights(tmp_path: Path, cache: Path) -> None:
    folder = tiny.write_folder(tmp_path / "m", shards=2)
    before = open_model(str(folder)).digest
    assert open_model(str(folder)).digest == before
    shard = folder / "model-0.safetensors"
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(data)
    assert open_model(str(folder)).digest != before


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model_type": "qwen3"}, "'qwen3' is not supported; supported: llama"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8}}, "type 'llama3'"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4}}, "type 'yarn'"),
        ({"attention_bias": True}, "attention_bias = True"),
        ({"hidden_act": "gelu"}, "hidden_act = 'gelu'"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantised safetensors"),
        ({"hidden_size": "64"}, "hidden_size is '64'"),
        ({"num_hidden_layers": 10**12}, "layers is 1000000000000"),
        ({"num_hidden_layers": 1}, "unknown (model.layers.1"),
        ({"tie_word_embeddings": False}, "1 missing (lm_head.weight"),
        ({"eos_token_id": "end"}, "token ids are expected"),
    ],
)
def test_refuses_by_name(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    folder = tiny.write_folder(tmp_path / "m", **changes)
    with pytest.raises(ModelError) as caught:
        folder_model(folder)
    assert words in str(caught.value)


def test_pickles_are_refused_with_the_reason(tmp_path: Path) -> None:
    folder = tiny.write_folder(tmp_path / "m")
    (folder / "model-0.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(ModelError, match="run code when opened"):
        folder_model(folder)


@pytest.mark.parametrize("name", ["../evil.safetensors", "/etc/passwd", "model.bin"])
def test_an_index_cannot_point_elsewhere(tmp_path: Path, name: str) -> None:
    folder = tiny.write_folder(tmp_path / "m")
    tiny.write_json(folder / "model.safetensors.index.json", {"weight_map": {"x": name}})
    with pytest.raises(ModelError, match="not a safetensors file of this folder"):
        folder_model(folder)


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    folder = tiny.write_folder(tmp_path / "m", shards=2)
    (folder / "model-1.safetensors").unlink()
    with pytest.raises(ModelError, match=r"shard model-1.safetensors is missing"):
        folder_model(folder)


def test_a_tokenizer_larger_than_the_model_is_refused(tmp_path: Path, cache: Path) -> None:
    folder = tiny.write_folder(tmp_path / "m")
    raw = json.loads((folder / "tokenizer.json").read_text())
    raw["model"]["vocab"]["extra"] = 300
    tiny.write_json(folder / "tokenizer.json", raw)
    with pytest.raises(ModelError, match="has id 300, the model only 300 embeddings"):
        load_tokenizer(open_model(str(folder)))


@pytest.mark.parametrize("text", ["", "[]", "{", "[" * 100_000, '{"version": "1.0"}'])
def test_a_broken_tokenizer_json_is_one_error(tmp_path: Path, cache: Path, text: str) -> None:
    folder = tiny.write_folder(tmp_path / "m")
    (folder / "tokenizer.json").write_text(text)
    with pytest.raises(ModelError, match=r"not a usable tokenizer.json"):
        load_tokenizer(open_model(str(folder)))


@settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    header=st.one_of(
        st.binary(max_size=200),
        st.recursive(
            st.none() | st.integers() | st.text(max_size=5) | st.sampled_from(["F32", "BF16"]),
            lambda inner: (
                st.lists(inner, max_size=3)
                | st.dictionaries(
                    st.sampled_from(["dtype", "shape", "data_offsets", "a", "__metadata__"]), inner
                )
            ),
        ).map(lambda value: json.dumps(value).encode()),
    ),
    length=st.none() | st.integers(0, 2**64 - 1),
)
def test_hostile_headers(tmp_path: Path, header: bytes, length: int | None) -> None:
    path = tmp_path / "x.safetensors"
    claimed = len(header) if length is None else length
    path.write_bytes(struct.pack("<Q", claimed) + header + bytes(64))
    try:
        entries = read_index([path])
    except ModelError:
        return
    size = path.stat().st_size
    assert all(entry.offset + entry.nbytes <= size for entry in entries.values())
