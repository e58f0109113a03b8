"""Where each parameter of a Qwen3 model is in its Hugging Face checkpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vime_core.models.geometry import TensorRule

if TYPE_CHECKING:
    from vime_core.models.geometry import ModelGeometry

LAYER = "model.layers.{layer}."


def embedding_rule(geometry: ModelGeometry) -> TensorRule:
    """The token embedding."""
    shape = (geometry.vocab_size, geometry.hidden_size)
    return TensorRule("embedding", ("model.embed_tokens.weight",), (shape,), "copy", "rows")


def attention_rules(geometry: ModelGeometry) -> list[TensorRule]:
    """Attention of one layer, and the norms before and after it."""
    hidden, head_dim = geometry.hidden_size, geometry.head_dim
    q_size, kv_size = geometry.num_heads * head_dim, geometry.num_kv_heads * head_dim
    attention = LAYER + "self_attn."
    return [
        norm_rule("layer.input_norm", LAYER + "input_layernorm.weight", hidden),
        TensorRule(
            "layer.attention.qkv",
            tuple(f"{attention}{part}_proj.weight" for part in "qkv"),
            ((q_size, hidden), (kv_size, hidden), (kv_size, hidden)),
            "qkv",
            "rows",
        ),
        norm_rule("layer.attention.q_norm", attention + "q_norm.weight", head_dim),
        norm_rule("layer.attention.k_norm", attention + "k_norm.weight", head_dim),
        TensorRule("layer.attention.out", (attention + "o_proj.weight",), ((hidden, q_size),), "copy", "columns"),
        norm_rule("layer.post_attention_norm", LAYER + "post_attention_layernorm.weight", hidden),
    ]


def dense_mlp_rules(geometry: ModelGeometry) -> list[TensorRule]:
    """The gated MLP of one layer."""
    hidden, ffn = geometry.hidden_size, geometry.ffn_size
    mlp = LAYER + "mlp."
    return [
        TensorRule(
            "layer.mlp.gate_up",
            (mlp + "gate_proj.weight", mlp + "up_proj.weight"),
            ((ffn, hidden), (ffn, hidden)),
            "gate_up",
            "rows",
        ),
        TensorRule("layer.mlp.down", (mlp + "down_proj.weight",), ((hidden, ffn),), "copy", "columns"),
    ]


def expert_rules(geometry: ModelGeometry) -> list[TensorRule]:
    """Router and experts of one layer; none for a dense model."""
    if geometry.experts is None:
        return []
    hidden, ffn, count = geometry.hidden_size, geometry.experts.ffn_size, geometry.experts.num_experts
    mlp = LAYER + "mlp."
    expert = mlp + "experts.{expert}."
    return [
        TensorRule("layer.moe.router", (mlp + "gate.weight",), ((count, hidden),), "copy", "none"),
        TensorRule(
            "layer.moe.expert.gate_up",
            (expert + "gate_proj.weight", expert + "up_proj.weight"),
            ((ffn, hidden), (ffn, hidden)),
            "gate_up",
            "rows",
            stacked_name=mlp + "experts.gate_up_proj",
        ),
        TensorRule(
            "layer.moe.expert.down",
            (expert + "down_proj.weight",),
            ((hidden, ffn),),
            "copy",
            "columns",
            stacked_name=mlp + "experts.down_proj",
        ),
    ]


def output_rules(geometry: ModelGeometry) -> list[TensorRule]:
    """The final norm, and the output projection where it is not the embedding."""
    rules = [norm_rule("final_norm", "model.norm.weight", geometry.hidden_size)]
    if not geometry.tied_embeddings:
        shape = (geometry.vocab_size, geometry.hidden_size)
        rules.append(TensorRule("output", ("lm_head.weight",), (shape,), "copy", "rows"))
    return rules


def norm_rule(role: str, name: str, size: int) -> TensorRule:
    """The scale of an RMSNorm; every tensor-parallel rank holds all of it."""
    return TensorRule(role, (name,), ((size,),), "copy", "none")
