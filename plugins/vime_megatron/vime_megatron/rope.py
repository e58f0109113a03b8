"""Rotary positions: the frequencies of transformers, including those of scaled context lengths."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from vime_core.errors import ModelError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from vime_core.models.geometry import ModelGeometry


class RotaryAngles(torch.nn.Module):
    """Angle of every rotated pair at every token, for Megatron's attention."""

    def __init__(self, geometry: ModelGeometry, device: torch.device) -> None:
        super().__init__()
        frequencies, _ = rotary_frequencies(geometry)
        self.register_buffer("frequencies", frequencies.to(device), persistent=False)
        self.frequencies: torch.Tensor

    def forward(self, position_ids: torch.Tensor) -> torch.Tensor:
        """[T] positions to [T, 1, 1, head_dim] angles in radians, float32; both halves of a head turn alike."""
        angles = position_ids[:, None].float() * self.frequencies
        return torch.cat((angles, angles), dim=-1)[:, None, None, :]


def rotary_frequencies(geometry: ModelGeometry) -> tuple[torch.Tensor, float]:
    """Frequencies as transformers' `modeling_rope_utils` computes them, and the factor on cosine and sine.

    Returns:
        [head_dim / 2] radians a position, float32; and the attention factor, 1 without scaling.

    Raises:
        ModelError: for a type of scaling that is not known here, or one without its parameters.
    """
    scaling = geometry.rope_scaling or {}
    kind = str(scaling.get("rope_type", scaling.get("type", "default")))
    if kind not in SCALINGS:
        known = ", ".join(sorted(SCALINGS))
        raise ModelError(f"rope type {kind!r} is not supported by training backend megatron; known are {known}")
    powers = torch.arange(0, geometry.head_dim, 2, dtype=torch.float32) / geometry.head_dim
    frequencies = 1.0 / (geometry.rope_theta**powers)
    try:
        return SCALINGS[kind](frequencies, geometry, scaling)
    except KeyError as error:
        raise ModelError(f"rope type {kind!r} needs {error.args[0]!r} in rope_scaling of config.json") from error


def _default(
    frequencies: torch.Tensor, _geometry: ModelGeometry, _scaling: Mapping[str, Any]
) -> tuple[torch.Tensor, float]:
    return frequencies, 1.0


def _linear(
    frequencies: torch.Tensor, _geometry: ModelGeometry, scaling: Mapping[str, Any]
) -> tuple[torch.Tensor, float]:
    return frequencies / scaling["factor"], 1.0


def _llama3(
    frequencies: torch.Tensor, _geometry: ModelGeometry, scaling: Mapping[str, Any]
) -> tuple[torch.Tensor, float]:
    """Long waves are slowed down by the factor, short ones are kept, those between are interpolated."""
    factor, low, high = scaling["factor"], scaling["low_freq_factor"], scaling["high_freq_factor"]
    turns = scaling["original_max_position_embeddings"] * frequencies / (2.0 * math.pi)
    kept = ((turns - low) / (high - low)).clamp(0.0, 1.0)
    return frequencies * (kept + (1.0 - kept) / factor), 1.0


def _yarn(frequencies: torch.Tensor, geometry: ModelGeometry, scaling: Mapping[str, Any]) -> tuple[torch.Tensor, float]:
    """YaRN (arXiv:2309.00071): fast dimensions are kept, slow ones slowed down, with a ramp between them."""
    trained = scaling["original_max_position_embeddings"]
    factor = scaling["factor"]

    def dimension(turns: float) -> float:
        """The dimension that makes so many turns over the trained context."""
        return geometry.head_dim * math.log(trained / (turns * 2.0 * math.pi)) / (2.0 * math.log(geometry.rope_theta))

    first = dimension(scaling.get("beta_fast") or 32.0)
    last = dimension(scaling.get("beta_slow") or 1.0)
    if scaling.get("truncate", True):
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, geometry.head_dim - 1)
    span = last - first if last != first else 0.001
    slowed = ((torch.arange(len(frequencies), dtype=torch.float32) - first) / span).clamp(0.0, 1.0)
    return frequencies * (1.0 - slowed) + frequencies / factor * slowed, _yarn_attention_factor(factor, scaling)


def _yarn_attention_factor(factor: float, scaling: Mapping[str, Any]) -> float:
    given = scaling.get("attention_factor")
    if given is not None:
        return float(given)

    def magnitude(weight: float) -> float:
        return 0.1 * weight * math.log(factor) + 1.0 if factor > 1.0 else 1.0

    numerator, denominator = scaling.get("mscale"), scaling.get("mscale_all_dim")
    if numerator and denominator:
        return magnitude(numerator) / magnitude(denominator)
    return magnitude(1.0)


SCALINGS = {"default": _default, "linear": _linear, "llama3": _llama3, "yarn": _yarn}
"""Types of rope scaling whose frequencies do not depend on the length of a sequence."""
