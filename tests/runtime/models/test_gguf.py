"""Our GGUF reader against the format's own library, and against hostile files."""

import mmap
import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFReader
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import LlamaConfig, LlamaForCausalLM

from stages.runtime.models import gguf
from stages.runtime.models.errors import ModelError
from stages.runtime.models.gguf import read_gguf
from stages.runtime.models.gguf_cursor import Cursor
from stages.runtime.models.gguf_model import gguf_model
from stages.runtime.models.gguf_tokenizer import build_tokenizer_json
from stages.runtime.models.spec import ModelSpec
from tests.runtime.models import tiny


def test_equals_the_gguf_library_on_the_built_in_model(built_in: ModelSpec) -> None:
    ours, theirs = read_gguf(built_in.source), GGUFReader(built_in.source)
    assert [
        (t.name, t.tensor_type.name, tuple(map(int, t.shape))[::-1], t.data_offset, t.n_bytes)
        for t in theirs.tensors
    ] == [(t.name, t.encoding, t.shape, t.offset, t.nbytes) for t in ours.tensors]
    for key, value in ours.metadata.items():
        assert theirs.fields[key].contents() == value
    for key in ("tokenizer.ggml.tokens", "tokenizer.ggml.merges"):
        assert theirs.fields[key].contents() == ours.strings(key)
    assert theirs.fields["tokenizer.ggml.token_type"].contents() == ours.numbers(
        "tokenizer.ggml.token_type"
    )


def test_the_reader_stops_where_the_weights_begin(
    built_in: ModelSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    cursors: list[Cursor] = []

    class NotedCursor(Cursor):
        def __init__(self, path: Path, data: bytes | mmap.mmap) -> None:
            super().__init__(path, data)
            cursors.append(self)

    monkeypatch.setattr(gguf, "Cursor", NotedCursor)
    tensors = read_gguf(built_in.source).tensors
    assert [cursor.at <= min(tensor.offset for tensor in tensors) for cursor in cursors] == [True]


def test_names_are_those_of_transformers(built_in: ModelSpec) -> None:
    config = LlamaConfig(
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=30,
        num_attention_heads=2,
        vocab_size=32,
    )
    names = set(LlamaForCausalLM(config).state_dict()) - {"lm_head.weight"}
    assert set(built_in.tensors) == names
    interleaved = {name for name, entry in built_in.tensors.items() if entry.rope_interleaved}
    assert interleaved == {n for n in names if ".q_proj." in n or ".k_proj." in n}


def test_tiny_file_gives_config_and_bytes(tmp_path: Path) -> None:
    config, tensors = gguf_model(read_gguf(tiny.write_gguf(tmp_path / "m.gguf")))
    assert replace(config, rms_eps=tiny.CONFIG.rms_eps) == tiny.CONFIG  # float32 in the file
    for name, expected in tiny.weights().items():
        entry = tensors[name]
        data = entry.file.read_bytes()[entry.offset : entry.offset + entry.nbytes]
        assert np.array_equal(np.frombuffer(data, "<f4").reshape(entry.shape), expected)


@pytest.mark.parametrize(
    ("changes", "options", "words"),
    [
        ({}, {"architecture": "mamba"}, "'mamba' is not supported; supported: llama"),
        ({"llama.rope.scaling.type": "yarn"}, {}, "scaled rotary"),
        ({"llama.expert_count": 8}, {}, "mixtures of experts"),
        ({"split.count": 3}, {}, "merge the parts"),
        ({"llama.rope.dimension_count": 8}, {}, "a part of the head"),
        ({"llama.block_count": None}, {}, "'llama.block_count' is None"),
        ({"llama.block_count": 4_000_000_000}, {}, "layers is 4000000000"),
        ({"llama.embedding_length": "many"}, {}, "is 'many'; a whole number"),
        ({"llama.attention.head_count": 0}, {}, "heads is 0"),
        ({"llama.attention.head_count_kv": 3}, {}, "multiple of KV heads"),
        ({"llama.rope.freq_base": float("nan")}, {}, "must be positive"),
        ({"llama.context_length": 0}, {}, "context is 0"),
        ({"tokenizer.ggml.eos_token_id": 300}, {}, "special token 300"),
        ({"llama.feed_forward_length": 128}, {}, "the config says"),
        ({}, {"drop": "blk.1.ffn_up.weight"}, "1 missing (model.layers.1.mlp.up_proj.weight"),
        ({}, {"extra": {"blk.0.attn_q.bias": np.zeros(64, np.float32)}}, "'blk.0.attn_q.bias'"),
    ],
)  # fmt: skip
def test_refuses_by_name(
    tmp_path: Path, changes: dict[str, object], options: dict[str, object], words: str
) -> None:
    path = tiny.write_gguf(tmp_path / "m.gguf", changes=changes, **options)
    with pytest.raises(ModelError) as caught:
        gguf_model(read_gguf(path))
    assert words in str(caught.value)
    assert str(path) in str(caught.value)


def test_unsupported_encodings_are_named(tmp_path: Path) -> None:
    path = tiny.write_gguf(tmp_path / "m.gguf")
    data = bytearray(path.read_bytes())
    at = data.index(b"blk.0.attn_v.weight") + len("blk.0.attn_v.weight") + 4 + 16
    data[at : at + 4] = struct.pack("<I", 12)
    path.write_bytes(data)
    with pytest.raises(
        ModelError, match=r"Q4_K \(1: blk.0.attn_v.weight…\); supported are F32, F16"
    ):
        read_gguf(path)


def _header(tensors: int, keys: int, rest: bytes = b"", version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, keys) + rest


_HUGE = 2**63
_KEY = struct.pack("<Q", 1) + b"k"


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "too few"),
        (b"GGML" + bytes(40), "not a GGUF file"),
        (_header(0, 0, version=1), "version 1"),
        (_header(0, 0, version=0x03000000), "big-endian"),
        (_header(_HUGE, 0), "at most"),
        (_header(0, 60_000), "are left"),
        (_header(0, 1, struct.pack("<Q", _HUGE)), "a metadata key has"),
        (_header(0, 1, _KEY + struct.pack("<I", 77)), "unknown type 77"),
        (_header(0, 1, _KEY + struct.pack("<IQ", 8, 1 << 22)), "are left"),
        (_header(0, 1, _KEY + struct.pack("<IIQ", 9, 4, _HUGE)), "elements"),
        (_header(0, 1, _KEY + struct.pack("<IIQ", 9, 8, _HUGE)), "strings, more than fit"),
        (_header(0, 1, _KEY + struct.pack("<IIQQ", 9, 8, 1, _HUGE)), "past the end"),
        (_header(0, 1, _KEY + struct.pack("<IIQ", 9, 9, 1)), "array of type 9"),
        (_header(0, 2, (_KEY + struct.pack("<IB", 0, 1)) * 2), "twice"),
        (_header(0, 1, struct.pack("<Q", 1) + b"\xff"), "not UTF-8"),
        (_header(1, 0, _KEY + struct.pack("<I", 9)), "9 dimensions"),
        (_header(1, 0, _KEY + struct.pack("<IQIQ", 1, 2**60, 0, 0)), "the file has"),
        (_header(1, 0, _KEY + struct.pack("<IQIQ", 1, 0, 0, 0)), "not made of F32 blocks"),
        (_header(1, 0, _KEY + struct.pack("<IQIQ", 1, 33, 8, 0)), "not made of Q8_0 blocks"),
        (_header(1, 0, _KEY + struct.pack("<IQIQ", 1, 1, 0, _HUGE)), "the file has"),
    ],
)
def test_hostile_headers(tmp_path: Path, data: bytes, words: str) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(data)
    with pytest.raises(ModelError, match=words):
        read_gguf(path)


def test_overlapping_tensors_are_refused(tmp_path: Path) -> None:
    """Otherwise a small file could claim to need any amount of memory."""
    info = struct.pack("<IQIQ", 1, 8, 0, 0)
    path = tmp_path / "m.gguf"
    other = struct.pack("<Q", 1) + b"j"
    path.write_bytes(_header(2, 0, _KEY + info + other + info) + bytes(200))
    with pytest.raises(ModelError, match="overlaps"):
        read_gguf(path)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path: Path = tmp_path_factory.mktemp("gguf") / "m.gguf"
    return tiny.write_gguf(path).read_bytes()


@settings(
    max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_damage_gives_an_error_or_a_model(
    sound: bytes, tmp_path: Path, data: st.DataObject
) -> None:
    """Any truncation and any overwritten bytes: a ModelError or a result, quickly, and nothing else."""
    head = 9_000  # all of the metadata and tensor table lies before this
    broken = bytearray(sound)
    for _ in range(data.draw(st.integers(0, 4))):
        at = data.draw(st.integers(0, head))
        patch = data.draw(st.one_of(st.binary(min_size=1, max_size=8), st.sampled_from(_NASTY)))
        broken[at : at + len(patch)] = patch
    if data.draw(st.booleans()):
        del broken[data.draw(st.integers(0, len(broken))) :]
    path = tmp_path / "broken.gguf"
    path.write_bytes(broken)
    try:
        file = read_gguf(path)
        gguf_model(file)
        build_tokenizer_json(file)
    except ModelError:
        return
    for tensor in file.tensors:
        assert tensor.offset + tensor.nbytes <= len(broken)


_NASTY = [struct.pack("<Q", n) for n in (0, 1, 2**31, 2**32 - 1, 2**40, 2**63, 2**64 - 1)]
