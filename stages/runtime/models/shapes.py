"""Which tensors a Llama-family decoder needs, and of what shape. Both file readers check against it."""

from collections.abc import Mapping
from math import inf
from pathlib import Path

from stages.runtime.models.errors import ModelError
from stages.runtime.models.spec import ModelConfig, TensorEntry

SUPPORTED_ARCHITECTURES = ("llama",)
MAX_LAYERS = 1_024
MAX_SIZE = 1 << 24  # any one dimension


def expected_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Hugging Face tensor name → row-major shape ([out, in] for linear layers)."""
    hidden, inner = config.hidden_size, config.intermediate_size
    q, kv = config.heads * config.head_dim, config.kv_heads * config.head_dim
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (config.vocab_size, hidden),
        "model.norm.weight": (hidden,),
    }
    if not config.tied_embeddings:
        shapes["lm_head.weight"] = (config.vocab_size, hidden)
    for layer in range(config.layers):
        prefix = f"model.layers.{layer}."
        shapes |= {
            prefix + "input_layernorm.weight": (hidden,),
            prefix + "post_attention_layernorm.weight": (hidden,),
            prefix + "self_attn.q_proj.weight": (q, hidden),
            prefix + "self_attn.k_proj.weight": (kv, hidden),
            prefix + "self_attn.v_proj.weight": (kv, hidden),
            prefix + "self_attn.o_proj.weight": (hidden, q),
            prefix + "mlp.gate_proj.weight": (inner, hidden),
            prefix + "mlp.up_proj.weight": (inner, hidden),
            prefix + "mlp.down_proj.weight": (hidden, inner),
        }
    return shapes


def check_architecture(source: Path, name: object) -> None:
    """Raises ModelError unless this engine runs the architecture `name`."""
    if name not in SUPPORTED_ARCHITECTURES:
        known = ", ".join(SUPPORTED_ARCHITECTURES)
        raise ModelError(f"{source}: architecture {name!r} is not supported; supported: {known}")


def check_config(source: Path, config: ModelConfig) -> None:
    """Raises ModelError when dimensions are out of bounds or do not fit each other."""
    sizes = {
        "vocab_size": (config.vocab_size, MAX_SIZE),
        "hidden_size": (config.hidden_size, MAX_SIZE),
        "layers": (config.layers, MAX_LAYERS),
        "heads": (config.heads, MAX_SIZE),
        "kv_heads": (config.kv_heads, MAX_SIZE),
        "head_dim": (config.head_dim, MAX_SIZE),
        "intermediate_size": (config.intermediate_size, MAX_SIZE),
        "context": (config.context, MAX_SIZE),
    }
    for name, (value, limit) in sizes.items():
        if not 1 <= value <= limit:
            raise ModelError(f"{source}: {name} is {value}; 1 to {limit} is expected")
    if config.heads % config.kv_heads or config.head_dim % 2:
        raise ModelError(
            f"{source}: {config.heads} heads, {config.kv_heads} KV heads of {config.head_dim}: heads "
            "must be a multiple of KV heads, and the head dimension even"
        )
    if not all(0 < value < inf for value in (config.rope_theta, config.rms_eps)):  # nor NaN
        raise ModelError(
            f"{source}: rope_theta {config.rope_theta} and rms_eps {config.rms_eps} must be positive"
        )
    for token in (*config.eos_ids, *(() if config.bos_id is None else (config.bos_id,))):
        if not 0 <= token < config.vocab_size:
            raise ModelError(
                f"{source}: special token {token} is outside the {config.vocab_size} tokens"
            )


def check_tensors(source: Path, config: ModelConfig, tensors: Mapping[str, TensorEntry]) -> None:
    """Raises ModelError when a tensor is missing, unexpected, or of another shape."""
    expected = expected_shapes(config)
    missing = [name for name in expected if name not in tensors]
    extra = [name for name in tensors if name not in expected]
    if missing or extra:
        parts = [
            f"{len(names)} {word} ({', '.join(names[:3])}…)"
            for word, names in (("missing", missing), ("unknown", extra))
            if names
        ]
        raise ModelError(f"{source}: not the tensors of a llama model: {'; '.join(parts)}")
    for name, shape in expected.items():
        if tensors[name].shape != shape:
            raise ModelError(
                f"{source}: tensor {name} has shape {tensors[name].shape}, the config says {shape}"
            )
