"""A model folder in the Hugging Face layout: config.json, *.safetensors, tokenizer.json."""

from pathlib import Path
from typing import Any

from stages.runtime.models.errors import ModelError
from stages.runtime.models.jsonfile import read_object
from stages.runtime.models.safetensors_index import read_index, weight_files
from stages.runtime.models.shapes import check_architecture, check_config, check_tensors
from stages.runtime.models.spec import ModelConfig, TensorEntry


def folder_model(folder: Path) -> tuple[ModelConfig, dict[str, TensorEntry]]:
    """Dimensions and tensors of `folder`. Raises ModelError on what our engine cannot run."""
    raw = read_object(folder / "config.json")
    check_architecture(folder, raw.get("model_type"))
    _refuse_variants(folder, raw)
    config = _config(folder, raw)
    check_config(folder, config)
    tensors = {
        name: entry
        for name, entry in read_index(weight_files(folder)).items()
        if not name.endswith("rotary_emb.inv_freq")  # a constant that old checkpoints carry
    }
    if config.tied_embeddings:
        tensors.pop("lm_head.weight", None)  # some writers store the shared matrix twice
    check_tensors(folder, config, tensors)
    return config, tensors


def _config(folder: Path, raw: dict[str, Any]) -> ModelConfig:
    fields = _Fields(folder, raw)
    heads = fields.integer("num_attention_heads")
    hidden = fields.integer("hidden_size")
    return ModelConfig(
        architecture="llama",
        vocab_size=fields.integer("vocab_size"),
        hidden_size=hidden,
        layers=fields.integer("num_hidden_layers"),
        heads=heads,
        kv_heads=fields.integer("num_key_value_heads", heads),
        head_dim=fields.integer("head_dim", hidden // max(heads, 1)),
        intermediate_size=fields.integer("intermediate_size"),
        context=fields.integer("max_position_embeddings", 2048),
        rope_theta=_rope_theta(fields),
        rms_eps=fields.number("rms_norm_eps", 1e-6),
        tied_embeddings=raw.get("tie_word_embeddings", False) is True,
        bos_id=fields.tokens("bos_token_id")[0] if fields.tokens("bos_token_id") else None,
        eos_ids=_eos_ids(folder, fields),
    )


def _rope_theta(fields: "_Fields") -> float:
    """transformers 5 writes rope_parameters.rope_theta, older versions rope_theta."""
    rope = fields.raw.get("rope_parameters")
    if isinstance(rope, dict) and "rope_theta" in rope:
        return _Fields(fields.folder, rope).number("rope_theta", 10_000.0)
    return fields.number("rope_theta", 10_000.0)


def _eos_ids(folder: Path, fields: "_Fields") -> tuple[int, ...]:
    """End tokens of config.json and generation_config.json together: chat models list more in the latter."""
    ids = set(fields.tokens("eos_token_id"))
    path = folder / "generation_config.json"
    if path.is_file():
        ids.update(_Fields(folder, read_object(path)).tokens("eos_token_id"))
    return tuple(sorted(ids))


def _refuse_variants(folder: Path, raw: dict[str, Any]) -> None:
    """Variants whose arithmetic we lack would run and answer nonsense: refuse them."""
    for key in ("rope_scaling", "rope_parameters"):
        rope = raw.get(key) or {}
        kind = (
            rope.get("rope_type", rope.get("type", "default")) if isinstance(rope, dict) else rope
        )
        if kind != "default":
            raise ModelError(f"{folder}: rotary embeddings of type {kind!r} are not supported yet")
    for key, plain in (("attention_bias", False), ("mlp_bias", False), ("hidden_act", "silu")):
        if raw.get(key, plain) != plain:
            raise ModelError(f"{folder}: {key} = {raw[key]!r} is not supported; only {plain!r} is")
    if raw.get("quantization_config"):
        raise ModelError(
            f"{folder}: quantised safetensors are not supported; F32, F16 and BF16 are"
        )


class _Fields:
    """Typed access to a JSON object; errors name file and key."""

    def __init__(self, folder: Path, raw: dict[str, Any]) -> None:
        self.folder, self.raw = folder, raw

    def integer(self, key: str, default: int | None = None) -> int:
        value = default if self.raw.get(key) is None else self.raw[key]
        if type(value) is not int:
            raise ModelError(
                f"{self.folder}/config.json: {key} is {value!r}; a whole number is expected"
            )
        return value

    def number(self, key: str, default: float) -> float:
        value = default if self.raw.get(key) is None else self.raw[key]
        if type(value) not in (int, float):
            raise ModelError(f"{self.folder}/config.json: {key} is {value!r}; a number is expected")
        return float(value)

    def tokens(self, key: str) -> tuple[int, ...]:
        """A token id, a list of them, or none."""
        value = self.raw.get(key)
        values = [] if value is None else value if isinstance(value, list) else [value]
        if not all(type(item) is int for item in values):
            raise ModelError(f"{self.folder}: {key} is {value!r}; token ids are expected")
        return tuple(values)
