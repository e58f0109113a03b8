"""What a transformer looks like, as plain numbers: everything a training backend needs to build one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping

TensorTransform = Literal["copy", "qkv", "gate_up"]
ShardAxis = Literal["none", "rows", "columns"]


@dataclass(frozen=True, slots=True)
class ExpertGeometry:
    """Mixture-of-experts layers."""

    num_experts: int
    top_k: int
    ffn_size: int
    """Intermediate size of one expert."""
    normalize_top_k: bool
    """Whether the chosen experts' probabilities are rescaled to sum to one."""
    dense_layers: frozenset[int] = frozenset()
    """Layers that keep a dense MLP."""


@dataclass(frozen=True, slots=True)
class ModelGeometry:
    """A decoder-only transformer with RMSNorm, rotary positions, grouped-query attention and a gated MLP."""

    family: str
    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    ffn_size: int
    vocab_size: int
    """Rows of the embedding in the checkpoint, before any padding."""
    max_positions: int
    norm_eps: float
    rope_theta: float
    rope_scaling: Mapping[str, Any] | None
    """Hugging Face's `rope_scaling`, or None."""
    tied_embeddings: bool
    qk_norm: bool
    attention_bias: bool
    activation: Literal["silu"]
    init_std: float
    eos_token_ids: tuple[int, ...]
    """All ids that end a response."""
    pad_token_id: int | None
    experts: ExpertGeometry | None = None


@dataclass(frozen=True, slots=True)
class TensorRule:
    """How one parameter of the model maps to tensors of the Hugging Face checkpoint; read in both directions.

    `role` names the parameter independent of any backend: `embedding`, `layer.input_norm`, `layer.attention.qkv`,
    `layer.attention.q_norm`, `layer.attention.k_norm`, `layer.attention.out`, `layer.post_attention_norm`,
    `layer.mlp.gate_up`, `layer.mlp.down`, `final_norm`, `output`, `layer.moe.router`, `layer.moe.expert.gate_up`,
    `layer.moe.expert.down`.
    """

    role: str
    hf_names: tuple[str, ...]
    """Names with `{layer}` and `{expert}` to fill in; several for a fused parameter, in order."""
    hf_shapes: tuple[tuple[int, ...], ...]
    """Shape of each tensor in the checkpoint."""
    transform: TensorTransform
    """`copy`; `qkv`: q, k, v interleaved by query group; `gate_up`: gate over up."""
    shard: ShardAxis
    """Tensor parallelism: `rows` splits dimension 0 of the fused parameter, `columns` dimension 1."""
    stacked_name: str | None = None
    """For a role of an expert: name, with `{layer}`, of one tensor that a checkpoint may hold in place of `hf_names`.

    It stacks the parts of `hf_names`, concatenated along dimension 0, of all experts along a new dimension 0.
    """
