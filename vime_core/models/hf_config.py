"""Reading `config.json` and `generation_config.json`; used by model families. No torch, no transformers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vime_core.errors import ModelError

ROPE_TYPES = ("linear", "yarn", "llama3")
"""Rope scalings whose frequencies do not depend on the length of a sequence: packed training and engines agree."""


def read_int(config: Mapping[str, Any], key: str) -> int:
    """A whole number > 0.

    Raises:
        ModelError: when it is missing or not a positive whole number.
    """
    value = _required(config, key)
    if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
        raise ModelError(f"config.json: {key} must be a whole number above 0, not {value!r}")
    return value


def read_float(config: Mapping[str, Any], key: str, default: float) -> float:
    """A number > 0; `default` when the key is absent.

    Raises:
        ModelError: when it is not a positive number.
    """
    value = config.get(key, default)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < float("inf"):
        raise ModelError(f"config.json: {key} must be a number above 0, not {value!r}")
    return float(value)


def read_flag(config: Mapping[str, Any], key: str, default: bool) -> bool:
    """A boolean; `default` when the key is absent.

    Raises:
        ModelError: when it is not a boolean.
    """
    value = config.get(key, default)
    if not isinstance(value, bool):
        raise ModelError(f"config.json: {key} must be true or false, not {value!r}")
    return value


def read_rope(config: Mapping[str, Any]) -> tuple[float, dict[str, Any] | None]:
    """Base and scaling of rotary positions.

    Reads both spellings: `rope_theta` with `rope_scaling`, and `rope_parameters`, which holds both, as transformers 5
    writes it. Precedence and defaults are those of transformers'
    `RotaryEmbeddingConfigMixin.convert_rope_params_to_dict`.

    Returns:
        The base (theta) and the scaling: None where there is none, else a mapping with `rope_type`, its parameters and
        (except for `linear`) `original_max_position_embeddings`.

    Raises:
        ModelError: for an unknown type of scaling or a malformed value.
    """
    section = config.get("rope_scaling") or config.get("rope_parameters") or {}
    if not isinstance(section, Mapping) or any(isinstance(value, Mapping) for value in section.values()):
        raise ModelError(f"config.json: rope parameters must be one flat object for all layers, not {section!r}")
    parameters = {key: value for key, value in section.items() if key not in ("type", "rope_type", "rope_theta")}
    theta = section.get("rope_theta", config.get("rope_theta"))
    theta = read_float({} if theta is None else {"rope_theta": theta}, "rope_theta", 10_000.0)
    partial = parameters.pop("partial_rotary_factor", config.get("partial_rotary_factor", 1.0))
    if partial != 1.0:
        raise ModelError(f"config.json: partial_rotary_factor {partial!r} is not supported: only whole heads rotate")
    kind = section.get("rope_type", section.get("type", "default"))
    if kind == "default":
        return theta, None
    if kind not in ROPE_TYPES:
        known = ", ".join(("default", *ROPE_TYPES))
        raise ModelError(f"config.json: rope type {kind!r} is not supported; known are {known}")
    parameters["factor"] = read_float({"factor": _required(parameters, "factor")}, "factor", 1.0)
    if kind != "linear":
        parameters.setdefault("original_max_position_embeddings", read_int(config, "max_position_embeddings"))
    return theta, {"rope_type": kind, **parameters}


def read_eos_token_ids(config: Mapping[str, Any], generation_config: Mapping[str, Any] | None) -> tuple[int, ...]:
    """All ids that end a response: those of `generation_config.json`, then further ones of `config.json`.

    Raises:
        ModelError: when an id is not a token of the vocabulary.
    """
    found: dict[int, None] = {}
    for source, values in (("generation_config.json", generation_config or {}), ("config.json", config)):
        value = values.get("eos_token_id")
        for item in value if isinstance(value, list) else [value]:
            if item is not None:
                found[_token_id(item, f"{source}: eos_token_id", config)] = None
    return tuple(found)


def read_pad_token_id(config: Mapping[str, Any], generation_config: Mapping[str, Any] | None) -> int | None:
    """The padding id of `config.json`, else that of `generation_config.json`, else None.

    Raises:
        ModelError: when it is not a token of the vocabulary.
    """
    for source, values in (("config.json", config), ("generation_config.json", generation_config or {})):
        value = values.get("pad_token_id")
        if value is not None:
            return _token_id(value, f"{source}: pad_token_id", config)
    return None


def has_sliding_window(config: Mapping[str, Any]) -> bool:
    """Whether any layer attends to a window only; the rule is that of transformers' `Qwen3Config`."""
    layer_types = config.get("layer_types")
    if layer_types is not None:
        return any(kind != "full_attention" for kind in layer_types)
    if not config.get("use_sliding_window", False) or config.get("sliding_window", 4096) is None:
        return False
    first_window_layer: int = config.get("max_window_layers", 28)
    return first_window_layer < read_int(config, "num_hidden_layers")


def _required(config: Mapping[str, Any], key: str) -> Any:
    if config.get(key) is None:
        raise ModelError(f"config.json: {key} is missing; take the file from the model's own repository")
    return config[key]


def _token_id(value: object, what: str, config: Mapping[str, Any]) -> int:
    vocab_size = read_int(config, "vocab_size")
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < vocab_size:
        raise ModelError(f"{what} {value!r} is not a token id of a vocabulary of {vocab_size}")
    return value
