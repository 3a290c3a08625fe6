"""A stored model's tokenizer and chat template."""

from contextlib import suppress
from pathlib import Path
from typing import Any

from stages.runtime.models.digest import write_atomically
from stages.runtime.models.errors import ModelError
from stages.runtime.models.gguf import GgufFile, read_gguf
from stages.runtime.models.gguf_tokenizer import VERSION, build_tokenizer_json
from stages.runtime.models.jsonfile import read_object, read_text
from stages.runtime.models.sandbox import MAX_SOURCE
from stages.runtime.models.spec import ModelSpec
from stages.runtime.models.store import cache_dir
from stages.runtime.models.template import ChatTemplate
from stages.runtime.models.tokenizer import Tokenizer


def load_tokenizer(spec: ModelSpec) -> Tokenizer:
    """The model's tokenizer (about 0.1 s for 49k tokens; GGUF: built once, then cached).

    Raises ModelError when there is none, or it does not fit the model.
    """
    folder = spec.source.is_dir()
    text = read_text(spec.source / "tokenizer.json") if folder else _from_gguf(spec)
    tokenizer = Tokenizer(
        text, bos_id=spec.config.bos_id, eos_ids=spec.config.eos_ids, source=str(spec.source)
    )
    if tokenizer.highest_id >= spec.config.vocab_size:
        raise ModelError(
            f"{spec.source}: the tokenizer has id {tokenizer.highest_id}, the model only "
            f"{spec.config.vocab_size} embeddings"
        )
    return tokenizer


def _from_gguf(spec: ModelSpec) -> str:
    """Cached by digest in our own folder: the file may lie where we cannot write."""
    cached = cache_dir() / "tokenizers" / f"{spec.digest}.v{VERSION}.json"
    if cached.is_file():
        return read_text(cached)
    text = build_tokenizer_json(read_gguf(spec.source))
    with suppress(OSError):  # a read-only cache costs time, not correctness
        write_atomically(cached, text)
    return text


def load_template(spec: ModelSpec) -> ChatTemplate:
    """The model's chat template. Raises ModelError when it has none: then only `generate` makes sense."""
    source, tokens = _folder_template(spec) if spec.source.is_dir() else _gguf_template(spec)
    if not source:
        raise ModelError(
            f"model {spec.name!r} has no chat template, so it cannot hold a chat; only `generate` with a "
            "bare prompt is possible"
        )
    return ChatTemplate(source, tokens=tokens, name=spec.name)


def _gguf_template(spec: ModelSpec) -> tuple[str, dict[str, str]]:
    file = read_gguf(spec.source)
    source = file.metadata.get("tokenizer.chat_template", "")
    names = file.strings("tokenizer.ggml.tokens")
    tokens = {
        f"{kind}_token": names[index]
        for kind in ("bos", "eos")
        if (index := _token_id(file, kind)) is not None and 0 <= index < len(names)
    }
    return str(source), tokens


def _token_id(file: GgufFile, kind: str) -> int | None:
    value = file.metadata.get(f"tokenizer.ggml.{kind}_token_id")
    return value if isinstance(value, int) else None


def _folder_template(spec: ModelSpec) -> tuple[str, dict[str, str]]:
    """chat_template.jinja wins over the entry in tokenizer_config.json, as in transformers."""
    path = spec.source / "tokenizer_config.json"
    config = read_object(path) if path.is_file() else {}
    tokens = {
        key: text for key in ("bos_token", "eos_token", "unk_token", "pad_token")
        if (text := _spelling(config.get(key))) is not None
    }  # fmt: skip
    jinja = spec.source / "chat_template.jinja"
    if jinja.is_file():
        return read_text(jinja, limit=4 * MAX_SOURCE), tokens
    return _chosen(config.get("chat_template"), path), tokens


def _chosen(value: Any, path: Path) -> str:
    """A template, or a list of named ones of which `default` is meant."""
    if isinstance(value, list):
        named = {item.get("name"): item.get("template") for item in value if isinstance(item, dict)}
        value = named.get("default")
    if value is not None and not isinstance(value, str):
        raise ModelError(f"{path}: chat_template should be text, not {type(value).__name__}")
    return value or ""


def _spelling(value: Any) -> str | None:
    """Tokens are written as text or as {"content": text, …}."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None
