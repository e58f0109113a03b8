"""The mixture-of-experts Qwen3 family: `config.json` to geometry, and the tensor map."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vime_core.errors import ModelError
from vime_core.models.geometry import ExpertGeometry
from vime_core.models.hf_config import read_flag, read_int
from vime_qwen3.decoder import decoder_geometry, is_model
from vime_qwen3.tensors import attention_rules, dense_mlp_rules, embedding_rule, expert_rules, output_rules

if TYPE_CHECKING:
    from collections.abc import Mapping

    from vime_core.models.geometry import ModelGeometry, TensorRule


class Qwen3Moe:
    """Implements `vime_core.plugins.interfaces.ModelFamily`."""

    def matches(self, hf_config: Mapping[str, Any]) -> bool:
        """Whether `config.json` describes a Qwen3 language model with experts."""
        return is_model(hf_config, "qwen3_moe", "Qwen3MoeForCausalLM")

    def geometry(self, hf_config: Mapping[str, Any], generation_config: Mapping[str, Any] | None) -> ModelGeometry:
        """Plain numbers of the model; keys that are absent have transformers' defaults.

        Raises:
            ModelError: for a key that is missing, a value of a wrong type or a feature that is not supported.
        """
        experts = _experts(hf_config)
        return decoder_geometry(hf_config, generation_config, family="qwen3_moe", experts=experts)

    def tensor_map(self, geometry: ModelGeometry) -> list[TensorRule]:
        """Every parameter once, in the order embedding, layers, final norm, output."""
        return [
            embedding_rule(geometry),
            *attention_rules(geometry),
            *dense_mlp_rules(geometry),
            *expert_rules(geometry),
            *output_rules(geometry),
        ]

    def tiny(self) -> dict[str, Any]:
        """A `config.json` of a model small enough for tests: four experts, two a token; the middle layer is dense."""
        return {
            "architectures": ["Qwen3MoeForCausalLM"],
            "model_type": "qwen3_moe",
            "dtype": "float32",
            "vocab_size": 128,
            "hidden_size": 64,
            "intermediate_size": 160,
            "moe_intermediate_size": 32,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "norm_topk_prob": True,
            "decoder_sparse_step": 1,
            "mlp_only_layers": [1],
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 32,
            "hidden_act": "silu",
            "max_position_embeddings": 512,
            "initializer_range": 0.02,
            "rms_norm_eps": 1e-6,
            "rope_theta": 10_000.0,
            "rope_scaling": None,
            "attention_bias": False,
            "tie_word_embeddings": False,
            "use_sliding_window": False,
            "bos_token_id": None,
            "eos_token_id": 2,
            "pad_token_id": 0,
        }


def _experts(hf_config: Mapping[str, Any]) -> ExpertGeometry:
    num_experts = _num_experts(hf_config)
    top_k = read_int(hf_config, "num_experts_per_tok")
    if top_k > num_experts:
        raise ModelError(f"config.json: num_experts_per_tok {top_k} is more than num_experts {num_experts}")
    return ExpertGeometry(
        num_experts=num_experts,
        top_k=top_k,
        ffn_size=read_int(hf_config, "moe_intermediate_size"),
        normalize_top_k=read_flag(hf_config, "norm_topk_prob", False),
        dense_layers=_dense_layers(hf_config),
    )


def _num_experts(hf_config: Mapping[str, Any]) -> int:
    """transformers 5 writes `num_local_experts` for what Qwen's own files call `num_experts`."""
    named = {key: read_int(hf_config, key) for key in ("num_experts", "num_local_experts") if key in hf_config}
    if not named:
        return read_int(hf_config, "num_experts")
    if len(set(named.values())) > 1:
        raise ModelError(f"config.json: {' and '.join(f'{key} {value}' for key, value in named.items())} contradict")
    return next(iter(named.values()))


def _dense_layers(hf_config: Mapping[str, Any]) -> frozenset[int]:
    """Layers without experts, by the rule of transformers' `Qwen3MoeDecoderLayer`."""
    layers = range(read_int(hf_config, "num_hidden_layers"))
    every = read_int({"decoder_sparse_step": 1, **hf_config}, "decoder_sparse_step")
    named = [] if (value := hf_config.get("mlp_only_layers")) is None else value
    if not isinstance(named, list) or any(type(layer) is not int for layer in named):
        raise ModelError(f"config.json: mlp_only_layers must be a list of layers, not {named!r}")
    dense = frozenset(layer for layer in layers if layer in named or (layer + 1) % every)
    if len(dense) == len(layers):
        raise ModelError(
            f"config.json: no layer has experts (decoder_sparse_step {every}, mlp_only_layers {named}, "
            f"{len(layers)} layers); this is a dense model, write it as one (model_type qwen3)"
        )
    return dense
