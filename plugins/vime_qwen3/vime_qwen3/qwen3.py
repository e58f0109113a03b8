"""The dense Qwen3 family: `config.json` to geometry, and the tensor map."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vime_qwen3.decoder import decoder_geometry, is_model
from vime_qwen3.tensors import attention_rules, dense_mlp_rules, embedding_rule, output_rules

if TYPE_CHECKING:
    from collections.abc import Mapping

    from vime_core.models.geometry import ModelGeometry, TensorRule


class Qwen3:
    """Implements `vime_core.plugins.interfaces.ModelFamily`."""

    def matches(self, hf_config: Mapping[str, Any]) -> bool:
        """Whether `config.json` describes a dense Qwen3 language model."""
        return is_model(hf_config, "qwen3", "Qwen3ForCausalLM")

    def geometry(self, hf_config: Mapping[str, Any], generation_config: Mapping[str, Any] | None) -> ModelGeometry:
        """Plain numbers of the model; keys that are absent have transformers' defaults.

        Raises:
            ModelError: for a key that is missing, a value of a wrong type or a feature that is not supported.
        """
        return decoder_geometry(hf_config, generation_config, family="qwen3")

    def tensor_map(self, geometry: ModelGeometry) -> list[TensorRule]:
        """Every parameter once, in the order embedding, layers, final norm, output."""
        return [
            embedding_rule(geometry),
            *attention_rules(geometry),
            *dense_mlp_rules(geometry),
            *output_rules(geometry),
        ]

    def tiny(self) -> dict[str, Any]:
        """A `config.json` of a model small enough for tests: head_dim is not hidden/heads, 2 heads a key-value head."""
        return {
            "architectures": ["Qwen3ForCausalLM"],
            "model_type": "qwen3",
            "dtype": "float32",
            "vocab_size": 128,
            "hidden_size": 64,
            "intermediate_size": 160,
            "num_hidden_layers": 2,
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
