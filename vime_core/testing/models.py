"""A tiny model: a family of a few thousand parameters, and its folder with random weights. No torch."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from vime_core.models.geometry import ModelGeometry, TensorRule
from vime_core.models.hf_config import read_eos_token_ids, read_int
from vime_core.models.tensors import tensor_shapes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

ATTENTION = "model.layers.{layer}.self_attn."
MLP = "model.layers.{layer}.mlp."


class TinyFamily:
    """Implements `ModelFamily`: a decoder with the names of Llama's checkpoints, `model_type` is `vime_tiny`."""

    def matches(self, hf_config: Mapping[str, Any]) -> bool:
        """Whether it is the tiny model."""
        return bool(hf_config.get("model_type") == "vime_tiny")

    def geometry(self, hf_config: Mapping[str, Any], generation_config: Mapping[str, Any] | None) -> ModelGeometry:
        """Two key-value heads under four heads; everything else is as small as it can be."""
        return ModelGeometry(
            family="vime_tiny",
            num_layers=read_int(hf_config, "num_hidden_layers"),
            hidden_size=read_int(hf_config, "hidden_size"),
            num_heads=4,
            num_kv_heads=2,
            head_dim=8,
            ffn_size=48,
            vocab_size=read_int(hf_config, "vocab_size"),
            max_positions=256,
            norm_eps=1e-6,
            rope_theta=1e4,
            rope_scaling=None,
            tied_embeddings=False,
            qk_norm=False,
            attention_bias=False,
            activation="silu",
            init_std=0.02,
            eos_token_ids=read_eos_token_ids(hf_config, generation_config),
            pad_token_id=None,
        )

    def tensor_map(self, geometry: ModelGeometry) -> list[TensorRule]:
        """Every parameter once."""
        hidden, ffn = geometry.hidden_size, geometry.ffn_size
        queries, keys = geometry.num_heads * geometry.head_dim, geometry.num_kv_heads * geometry.head_dim
        qkv = tuple(f"{ATTENTION}{part}_proj.weight" for part in "qkv")
        gate_up = (f"{MLP}gate_proj.weight", f"{MLP}up_proj.weight")
        table = (geometry.vocab_size, hidden)
        return [
            TensorRule("embedding", ("model.embed_tokens.weight",), (table,), "copy", "rows"),
            _norm("layer.input_norm", "model.layers.{layer}.input_layernorm.weight", hidden),
            TensorRule("layer.attention.qkv", qkv, ((queries, hidden), (keys, hidden), (keys, hidden)), "qkv", "rows"),
            TensorRule("layer.attention.out", (f"{ATTENTION}o_proj.weight",), ((hidden, queries),), "copy", "columns"),
            _norm("layer.post_attention_norm", "model.layers.{layer}.post_attention_layernorm.weight", hidden),
            TensorRule("layer.mlp.gate_up", gate_up, ((ffn, hidden), (ffn, hidden)), "gate_up", "rows"),
            TensorRule("layer.mlp.down", (f"{MLP}down_proj.weight",), ((hidden, ffn),), "copy", "columns"),
            _norm("final_norm", "model.norm.weight", hidden),
            TensorRule("output", ("lm_head.weight",), (table,), "copy", "rows"),
        ]

    def tiny(self) -> dict[str, Any]:
        """Its `config.json`."""
        return {
            "model_type": "vime_tiny",
            "dtype": "float32",
            "vocab_size": 90,
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "eos_token_id": 2,
        }


@dataclass(frozen=True, slots=True)
class TinyModel:
    """A folder in Hugging Face format, without tokenizer."""

    path: Path
    geometry: ModelGeometry
    tensor_map: Sequence[TensorRule]
    weights: Mapping[str, np.ndarray[Any, np.dtype[np.float32]]]
    """Name -> the tensor in the folder."""


def write_tiny_model(folder: Path, *, seed: int = 0) -> TinyModel:
    """Write the tiny model with random float32 weights: norms around 1, everything else around 0."""
    from safetensors.numpy import save_file

    family = TinyFamily()
    geometry = family.geometry(family.tiny(), None)
    tensor_map = family.tensor_map(geometry)
    rng = np.random.default_rng(seed)
    weights = {name: _random(name, shape, rng) for name, shape in tensor_shapes(geometry, tensor_map).items()}
    folder.mkdir(parents=True, exist_ok=True)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(family.tiny()))
    return TinyModel(folder, geometry, tensor_map, weights)


def _norm(role: str, name: str, size: int) -> TensorRule:
    return TensorRule(role, (name,), ((size,),), "copy", "none")


def _random(name: str, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray[Any, np.dtype[np.float32]]:
    if "norm" in name:
        return rng.uniform(0.5, 1.5, shape).astype(np.float32)
    return (0.2 * rng.standard_normal(shape)).astype(np.float32)
