"""Tiny models on disk, written by the formats' own libraries."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from stages.runtime.models.shapes import expected_shapes
from stages.runtime.models.spec import ModelConfig

HIDDEN, VOCABULARY = 64, 300
CONFIG = ModelConfig(
    architecture="llama",
    vocab_size=VOCABULARY,
    hidden_size=HIDDEN,
    layers=2,
    heads=4,
    kv_heads=2,
    head_dim=16,
    intermediate_size=96,
    context=128,
    rope_theta=10_000.0,
    rms_eps=1e-5,
    tied_embeddings=True,
    bos_id=1,
    eos_ids=(2,),
)
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content | trim }}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_GGUF_NAMES = {
    "embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "q_proj": "attn_q",
    "k_proj": "attn_k",
    "v_proj": "attn_v",
    "o_proj": "attn_output",
    "gate_proj": "ffn_gate",
    "up_proj": "ffn_up",
    "down_proj": "ffn_down",
}


def weights() -> dict[str, np.ndarray[Any, np.dtype[np.float32]]]:
    noise = np.random.default_rng(0)
    shapes = expected_shapes(CONFIG)
    return {name: noise.standard_normal(shape, dtype=np.float32) for name, shape in shapes.items()}


def vocabulary() -> list[str]:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    names = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *alphabet, "he", "ll", "hell"]
    return names + [f"[PAD{number}]" for number in range(VOCABULARY - len(names))]


def gguf_name(name: str) -> str:
    prefix = f"blk.{name.split('.')[2]}." if ".layers." in name else ""
    return prefix + next(new for old, new in _GGUF_NAMES.items() if old in name) + ".weight"


def write_gguf(path: Path, *, changes: dict[str, Any] | None = None, **options: Any) -> Path:
    """A sound llama GGUF; `changes` overwrite or (None) drop metadata. Options: encoding, drop, extra."""
    writer = GGUFWriter(path, options.get("architecture", "llama"))
    for key, value in (_metadata() | (changes or {})).items():
        if value is not None:
            _add(writer, key, value)
    encoding = options.get("encoding", GGMLQuantizationType.F32)
    tensors = {gguf_name(name): value for name, value in weights().items()} | options.get(
        "extra", {}
    )
    for name, value in tensors.items():
        if name != options.get("drop"):
            _add_tensor(writer, name, value, encoding)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _metadata() -> dict[str, Any]:
    return {
        "llama.block_count": CONFIG.layers,
        "llama.context_length": CONFIG.context,
        "llama.embedding_length": HIDDEN,
        "llama.feed_forward_length": CONFIG.intermediate_size,
        "llama.attention.head_count": CONFIG.heads,
        "llama.attention.head_count_kv": CONFIG.kv_heads,
        "llama.rope.freq_base": CONFIG.rope_theta,
        "llama.attention.layer_norm_rms_epsilon": CONFIG.rms_eps,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": vocabulary(),
        "tokenizer.ggml.token_type": [3] * 3 + [1] * 259 + [5] * (VOCABULARY - 262),
        "tokenizer.ggml.merges": ["h e", "l l", "he ll"],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.chat_template": TEMPLATE,
    }


def _add(writer: GGUFWriter, key: str, value: Any) -> None:
    match value:
        case bool():
            writer.add_bool(key, value)
        case int():
            writer.add_uint32(key, value)
        case float():
            writer.add_float32(key, value)
        case str():
            writer.add_string(key, value)
        case list():
            writer.add_array(key, value)


def _add_tensor(writer: GGUFWriter, name: str, value: Any, encoding: GGMLQuantizationType) -> None:
    if encoding == GGMLQuantizationType.F32 or value.ndim == 1:
        writer.add_tensor(name, value)
    else:
        block, size = {"Q8_0": (32, 34), "Q4_K": (32, 18)}[encoding.name]
        raw = np.zeros((*value.shape[:-1], value.shape[-1] // block * size), dtype=np.uint8)
        writer.add_tensor(name, raw, raw_shape=raw.shape, raw_dtype=GGMLQuantizationType.Q8_0)


def write_folder(folder: Path, *, shards: int = 1, **changes: Any) -> Path:
    """A sound Hugging Face folder; `changes` overwrite config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    names = sorted(weights())
    parts = [names[start::shards] for start in range(shards)]
    files = [f"model-{number}.safetensors" for number in range(shards)]
    for file, part in zip(files, parts, strict=True):
        save_file({name: weights()[name] for name in part}, folder / file)
    if shards > 1:
        places = {name: file for file, part in zip(files, parts, strict=True) for name in part}
        write_json(folder / "model.safetensors.index.json", {"weight_map": places})
    write_json(folder / "config.json", _config() | changes)
    write_json(
        folder / "tokenizer_config.json", {"chat_template": TEMPLATE, "eos_token": "<|im_end|>"}
    )
    (folder / "tokenizer.json").write_text(_tokenizer().to_str())
    return folder


def _config() -> dict[str, Any]:
    return {
        "model_type": "llama",
        "vocab_size": VOCABULARY,
        "hidden_size": HIDDEN,
        "num_hidden_layers": CONFIG.layers,
        "num_attention_heads": CONFIG.heads,
        "num_key_value_heads": CONFIG.kv_heads,
        "intermediate_size": CONFIG.intermediate_size,
        "max_position_embeddings": CONFIG.context,
        "rope_theta": CONFIG.rope_theta,
        "rms_norm_eps": CONFIG.rms_eps,
        "tie_word_embeddings": True,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }


def _tokenizer() -> Tokenizer:
    tokens = {name: index for index, name in enumerate(vocabulary())}
    tokenizer = Tokenizer(models.BPE(vocab=tokens, merges=[("h", "e"), ("l", "l"), ("he", "ll")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(vocabulary()[:3])
    return tokenizer


def write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value))
