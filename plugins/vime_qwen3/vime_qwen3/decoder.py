"""What dense and mixture-of-experts Qwen3 have in common: everything but the MLPs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vime_core.errors import ModelError
from vime_core.models.geometry import ModelGeometry
from vime_core.models.hf_config import (
    has_sliding_window,
    read_eos_token_ids,
    read_flag,
    read_float,
    read_int,
    read_pad_token_id,
    read_rope,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from vime_core.models.geometry import ExpertGeometry

DEFAULT_HEAD_DIM = 128
"""transformers' `Qwen3Config.head_dim`, which the engines use too when `config.json` does not name one."""


def is_model(hf_config: Mapping[str, Any], model_type: str, architecture: str) -> bool:
    """Whether `config.json` describes a model of this type, or of this architecture where it names no type."""
    found = hf_config.get("model_type")
    if found is not None:
        return bool(found == model_type)
    return architecture in (hf_config.get("architectures") or ())


def decoder_geometry(
    hf_config: Mapping[str, Any],
    generation_config: Mapping[str, Any] | None,
    *,
    family: str,
    experts: ExpertGeometry | None = None,
) -> ModelGeometry:
    """Plain numbers of the model; keys that are absent have transformers' defaults.

    Raises:
        ModelError: for a key that is missing, a value of a wrong type or a feature that is not supported.
    """
    _refuse_unsupported(hf_config, family)
    theta, scaling = read_rope(hf_config)
    num_heads, num_kv_heads, head_dim = _heads(hf_config)
    return ModelGeometry(
        family=family,
        num_layers=read_int(hf_config, "num_hidden_layers"),
        hidden_size=read_int(hf_config, "hidden_size"),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        ffn_size=read_int(hf_config, "intermediate_size"),
        vocab_size=read_int(hf_config, "vocab_size"),
        max_positions=read_int(hf_config, "max_position_embeddings"),
        norm_eps=read_float(hf_config, "rms_norm_eps", 1e-6),
        rope_theta=theta,
        rope_scaling=scaling,
        tied_embeddings=read_flag(hf_config, "tie_word_embeddings", False),
        qk_norm=True,
        attention_bias=False,
        activation="silu",
        init_std=read_float(hf_config, "initializer_range", 0.02),
        eos_token_ids=read_eos_token_ids(hf_config, generation_config),
        pad_token_id=read_pad_token_id(hf_config, generation_config),
        experts=experts,
    )


def _refuse_unsupported(hf_config: Mapping[str, Any], family: str) -> None:
    if (activation := hf_config.get("hidden_act", "silu")) != "silu":
        raise ModelError(f"config.json: hidden_act {activation!r} is not supported by family {family}, only 'silu'")
    if has_sliding_window(hf_config):
        raise ModelError("config.json: sliding-window attention is not supported; set use_sliding_window to false")
    if read_flag(hf_config, "attention_bias", False):
        # vLLM builds o_proj without a bias for this family, so that the engine would sample from another model.
        raise ModelError(f"config.json: attention_bias is not supported by family {family}; no released model uses it")


def _heads(hf_config: Mapping[str, Any]) -> tuple[int, int, int]:
    num_heads = read_int(hf_config, "num_attention_heads")
    num_kv_heads = read_int(hf_config, "num_key_value_heads")
    if num_heads % num_kv_heads:
        raise ModelError(
            f"config.json: num_attention_heads {num_heads} must be a multiple of num_key_value_heads {num_kv_heads}"
        )
    head_dim = read_int({"head_dim": DEFAULT_HEAD_DIM, **hf_config}, "head_dim")
    if head_dim % 2:
        raise ModelError(f"config.json: head_dim {head_dim} must be even, rotary positions turn pairs")
    return num_heads, num_kv_heads, head_dim
