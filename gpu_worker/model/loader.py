"""Weights of a Llama-family decoder: read, fused, packed; layers in parallel to load fast."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from torch import Tensor

from gpu_worker.model.linear import Linear, Scheme, linear_for
from gpu_worker.model.reader import WeightReader
from stages.runtime.models.spec import ModelConfig, ModelSpec

LOAD_THREADS: Final = 4  # at most; each holds one weight as float32


@dataclass(frozen=True)
class LayerWeights:
    """One decoder layer. H heads, K key/value heads, D head_dim, I intermediate."""

    input_norm: Tensor  # [hidden]
    qkv: Linear  # hidden -> (H + 2K) * D; rows of q and k in rotary pairs
    output: Linear  # H * D -> hidden
    post_norm: Tensor  # [hidden]
    gate_up: Linear  # hidden -> 2I, gate first
    down: Linear  # I -> hidden


@dataclass(frozen=True)
class DecoderWeights:
    """All weights. `embedding` [vocab, hidden], fp16 under the fp16 scheme."""

    embedding: Tensor
    layers: tuple[LayerWeights, ...]
    norm: Tensor  # [hidden]
    head: Linear  # hidden -> vocab


def load_weights(spec: ModelSpec, scheme: Scheme, threads: int) -> DecoderWeights:
    """Read and pack all weights with `threads` threads, or more where there are cores.

    Raises reader.WeightError.
    """
    config, reader = spec.config, WeightReader(spec)
    pack = linear_for(scheme)
    threads = max(threads, min(LOAD_THREADS, os.cpu_count() or 1))
    with ThreadPoolExecutor(threads, thread_name_prefix="load") as pool:
        ends = pool.submit(_ends, reader, config, scheme, pack)
        layers = pool.map(lambda i: _layer(reader, config, i, pack), range(config.layers))
        loaded = tuple(layers)
        embedding, head = ends.result()
    norm = torch.from_numpy(reader.read("model.norm.weight", config.hidden_size))
    return DecoderWeights(embedding, loaded, norm, head)


def _ends(
    reader: WeightReader, config: ModelConfig, scheme: Scheme, pack: Callable[[Tensor], Linear]
) -> tuple[Tensor, Linear]:
    """The embedding table and the head."""
    shape = (config.vocab_size, config.hidden_size)
    table = torch.from_numpy(reader.read("model.embed_tokens.weight", *shape))
    matrix = table
    if not config.tied_embeddings:
        matrix = torch.from_numpy(reader.read("lm_head.weight", *shape))
    head = pack(matrix)
    return table.half() if scheme == "fp16" else table, head


def _layer(
    reader: WeightReader, config: ModelConfig, index: int, pack: Callable[[Tensor], Linear]
) -> LayerWeights:
    prefix = f"model.layers.{index}."
    hidden, wide = config.hidden_size, config.intermediate_size
    queries, keys = config.heads * config.head_dim, config.kv_heads * config.head_dim
    attention, mlp = f"{prefix}self_attn.", f"{prefix}mlp."

    def norm(name: str) -> Tensor:
        return torch.from_numpy(reader.read(f"{prefix}{name}.weight", hidden))

    def qkv() -> Linear:
        q, k, v = (f"{attention}{name}_proj.weight" for name in "qkv")
        matrix = np.empty((queries + 2 * keys, hidden), dtype=np.float32)
        reader.read_rotary_into(matrix[:queries], q, config.heads)
        reader.read_rotary_into(matrix[queries : queries + keys], k, config.kv_heads)
        reader.read_into(matrix[queries + keys :], v)
        return pack(torch.from_numpy(matrix))

    def gate_up() -> Linear:
        matrix = np.empty((2 * wide, hidden), dtype=np.float32)
        reader.read_into(matrix[:wide], f"{mlp}gate_proj.weight")
        reader.read_into(matrix[wide:], f"{mlp}up_proj.weight")
        return pack(torch.from_numpy(matrix))

    def single(name: str, *shape: int) -> Linear:
        return pack(torch.from_numpy(reader.read(name, *shape)))

    return LayerWeights(
        input_norm=norm("input_layernorm"),
        qkv=qkv(),
        output=single(f"{attention}o_proj.weight", hidden, queries),
        post_norm=norm("post_attention_layernorm"),
        gate_up=gate_up(),
        down=single(f"{mlp}down_proj.weight", hidden, wide),
    )
