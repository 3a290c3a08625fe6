"""From a parsed GGUF file to what our engine calls a model: dimensions and Hugging Face tensor names."""

import re
from pathlib import Path

from stages.runtime.models.errors import ModelError
from stages.runtime.models.gguf import GgufFile, GgufTensor
from stages.runtime.models.shapes import check_architecture, check_config, check_tensors
from stages.runtime.models.spec import ModelConfig, TensorEntry

_TOP = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_LAYER = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_LAYER_NAME = re.compile(r"blk\.([0-9]{1,4})\.([a-z_]+)\.weight")


def gguf_model(file: GgufFile) -> tuple[ModelConfig, dict[str, TensorEntry]]:
    """Dimensions and tensors by Hugging Face name. Raises ModelError on what our engine cannot run."""
    check_architecture(file.path, file.metadata.get("general.architecture"))
    config = _config(file)
    check_config(file.path, config)
    tensors = {entry.name: entry for entry in (_entry(file, tensor) for tensor in file.tensors)}
    check_tensors(file.path, config, tensors)
    return config, tensors


def _config(file: GgufFile) -> ModelConfig:
    _refuse_variants(file)
    names = {tensor.name: tensor for tensor in file.tensors}
    hidden, heads = (
        _integer(file, "llama.embedding_length"),
        _integer(file, "llama.attention.head_count"),
    )
    head_dim = _integer(file, "llama.attention.key_length", hidden // max(heads, 1))
    if _integer(file, "llama.rope.dimension_count", head_dim) != head_dim:
        raise ModelError(f"{file.path}: rotary embedding over a part of the head is not supported")
    embeddings = names.get("token_embd.weight")
    rows = embeddings.shape[0] if embeddings else 0
    return ModelConfig(
        architecture="llama",
        vocab_size=_integer(file, "llama.vocab_size", rows),
        hidden_size=hidden,
        layers=_integer(file, "llama.block_count"),
        heads=heads,
        kv_heads=_integer(file, "llama.attention.head_count_kv", heads),
        head_dim=head_dim,
        intermediate_size=_integer(file, "llama.feed_forward_length"),
        context=_integer(file, "llama.context_length"),
        rope_theta=_number(file, "llama.rope.freq_base", 10_000.0),
        rms_eps=_number(file, "llama.attention.layer_norm_rms_epsilon", 1e-5),
        tied_embeddings="output.weight" not in names,
        bos_id=_token(file, "bos"),
        eos_ids=tuple(
            sorted({t for t in (_token(file, k) for k in ("eos", "eot")) if t is not None})
        ),
    )


def _refuse_variants(file: GgufFile) -> None:
    """Llama files that need arithmetic we do not have would run and answer nonsense: refuse them."""
    scaling = file.metadata.get("llama.rope.scaling.type", "none")
    scaled = any(tensor.name == "rope_freqs.weight" for tensor in file.tensors)
    if scaling != "none" or scaled:
        raise ModelError(f"{file.path}: scaled rotary embeddings are not supported yet")
    if _integer(file, "llama.expert_count", 0):
        raise ModelError(f"{file.path}: mixtures of experts are not supported yet")
    if _integer(file, "split.count", 1) > 1:
        raise ModelError(
            f"{file.path}: one part of a split GGUF; merge the parts into one file first"
        )


def _entry(file: GgufFile, tensor: GgufTensor) -> TensorEntry:
    name, kind = _hugging_face_name(file.path, tensor.name)
    # llama.cpp permutes the rows of q and k so that rotary pairs lie side by side
    return TensorEntry(
        name=name,
        encoding=tensor.encoding,
        shape=tensor.shape,
        file=file.path,
        offset=tensor.offset,
        nbytes=tensor.nbytes,
        rope_interleaved=kind in ("attn_q", "attn_k"),
    )


def _hugging_face_name(path: Path, name: str) -> tuple[str, str]:
    """(Hugging Face name, GGUF kind) of a GGUF tensor name."""
    if name in _TOP:
        return _TOP[name], name
    match = _LAYER_NAME.fullmatch(name)
    if match is None or match[2] not in _LAYER:
        raise ModelError(f"{path}: tensor {name!r} does not belong to a llama model we can run")
    return f"model.layers.{int(match[1])}.{_LAYER[match[2]]}.weight", match[2]


def _integer(file: GgufFile, key: str, default: int | None = None) -> int:
    value = file.metadata.get(key, default)
    if not isinstance(value, int) or isinstance(value, bool):
        raise ModelError(f"{file.path}: metadata {key!r} is {value!r}; a whole number is expected")
    return value


def _number(file: GgufFile, key: str, default: float) -> float:
    value = file.metadata.get(key, default)
    if not isinstance(value, int | float):
        raise ModelError(f"{file.path}: metadata {key!r} is {value!r}; a number is expected")
    return float(value)


def _token(file: GgufFile, name: str) -> int | None:
    key = f"tokenizer.ggml.{name}_token_id"
    return _integer(file, key) if key in file.metadata else None
