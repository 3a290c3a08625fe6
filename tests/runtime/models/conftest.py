"""The built-in model, pulled once (make test does it beforehand), and independent references."""

from pathlib import Path
from typing import Any

import pytest
from tokenizers import pre_tokenizers
from transformers import AutoTokenizer

from stages.runtime.models.artifacts import load_template, load_tokenizer
from stages.runtime.models.pull import pull
from stages.runtime.models.spec import ModelSpec
from stages.runtime.models.store import BUILT_IN
from stages.runtime.models.template import ChatTemplate
from stages.runtime.models.tokenizer import Tokenizer


@pytest.fixture(scope="session")
def built_in() -> ModelSpec:
    return pull(BUILT_IN)


@pytest.fixture(scope="session")
def tokenizer(built_in: ModelSpec) -> Tokenizer:
    return load_tokenizer(built_in)


@pytest.fixture(scope="session")
def template(built_in: ModelSpec) -> ChatTemplate:
    return load_template(built_in)


@pytest.fixture(scope="session")
def reference(built_in: ModelSpec) -> Any:
    """transformers' tokenizer of the same GGUF. It overlooks `tokenizer.ggml.pre = smollm`, so the splitting
    rule is set to the one that the model's authors publish in their tokenizer.json."""
    hf = AutoTokenizer.from_pretrained(built_in.source.parent, gguf_file=built_in.source.name)
    hf.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=True, use_regex=True),
        ]
    )
    return hf


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of this test's own."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("HEADRACE_CACHE", str(folder))
    return folder
