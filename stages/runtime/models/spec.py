"""What a model is, without torch: dimensions, where each tensor's bytes lie, which tokens end a text."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Architecture = Literal["llama"]


@dataclass(frozen=True)
class ModelConfig:
    """Dimensions of a Llama-family decoder, read from GGUF metadata or a Hugging Face config.json."""

    architecture: Architecture
    vocab_size: int
    hidden_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate_size: int
    context: int  # longest prompt + answer, in tokens
    rope_theta: float
    rms_eps: float
    tied_embeddings: bool
    bos_id: int | None
    eos_ids: tuple[int, ...]

    @property
    def parameters(self) -> int:
        """Number of weights (tied embeddings counted once)."""
        kv = self.kv_heads * self.head_dim
        q = self.heads * self.head_dim
        attention = self.hidden_size * (2 * q + 2 * kv)
        layer = attention + 3 * self.hidden_size * self.intermediate_size + 2 * self.hidden_size
        embeddings = self.vocab_size * self.hidden_size * (1 if self.tied_embeddings else 2)
        return self.layers * layer + embeddings + self.hidden_size


@dataclass(frozen=True)
class TensorEntry:
    """One tensor in a file. `name` is the Hugging Face name, whatever the file calls it."""

    name: str
    encoding: str  # GGUF: F32, F16, Q8_0, Q4_0, Q4_1; safetensors: F32, F16, BF16
    shape: tuple[int, ...]  # row-major, as torch would say it: [out, in] for a linear layer
    file: Path
    offset: int  # bytes from the start of the file
    nbytes: int
    rope_interleaved: bool = False  # rows of q/k are permuted for llama.cpp's rotary order


@dataclass(frozen=True)
class ModelSpec:
    """Everything the stages and the engine need to know of a stored model before any weight is read."""

    name: str  # the reference it was opened by
    source: Path  # the .gguf file or the folder
    digest: str  # sha256 over the weight files, hex
    config: ModelConfig
    tensors: Mapping[str, TensorEntry]  # by Hugging Face name
