from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import Qwen3Config
from transformers.models.qwen3.modeling_qwen3 import Qwen3RotaryEmbedding

from vime_core.errors import ModelError
from vime_megatron.rope import RotaryAngles, rotary_frequencies
from vime_qwen3.qwen3 import Qwen3

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
SCALINGS: list[dict[str, Any] | None] = [
    None,
    {"rope_type": "linear", "factor": 2.5},
    YARN,
    {**YARN, "beta_fast": 16.0, "beta_slow": 2.0, "truncate": False},
    {**YARN, "attention_factor": 1.3},
    {**YARN, "mscale": 1.2, "mscale_all_dim": 0.7},
    {**YARN, "factor": 1.0},
    {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
]


@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize("theta", [10_000.0, 1_000_000.0])
def test_frequencies_are_those_of_transformers(scaling: dict[str, Any] | None, theta: float) -> None:
    config = {**Qwen3().tiny(), "rope_theta": theta, "rope_scaling": scaling}
    reference = Qwen3RotaryEmbedding(Qwen3Config(**config))
    frequencies, factor = rotary_frequencies(Qwen3().geometry(config, None))
    torch.testing.assert_close(frequencies, reference.inv_freq, rtol=1e-6, atol=0)
    assert factor == pytest.approx(reference.attention_scaling, rel=1e-12)


def test_angles_follow_the_positions_of_the_tokens() -> None:
    geometry = Qwen3().geometry(Qwen3().tiny(), None)
    frequencies, _ = rotary_frequencies(geometry)
    angles = RotaryAngles(geometry, torch.device("cpu"))(torch.tensor([0, 1, 2, 0, 1]))
    assert angles.shape == (5, 1, 1, geometry.head_dim)
    assert angles[3].abs().max() == 0
    assert torch.equal(angles[2, 0, 0], torch.cat([2 * frequencies, 2 * frequencies]))


@pytest.mark.parametrize(
    ("scaling", "told"),
    [
        ({"rope_type": "dynamic", "factor": 2.0}, "rope type 'dynamic' is not supported by training backend megatron"),
        ({"rope_type": "linear"}, "rope type 'linear' needs 'factor'"),
    ],
)
def test_what_cannot_be_computed_is_told(scaling: dict[str, Any], told: str) -> None:
    from dataclasses import replace

    geometry = replace(Qwen3().geometry(Qwen3().tiny(), None), rope_scaling=scaling)
    with pytest.raises(ModelError, match=told) as error:
        rotary_frequencies(geometry)
    assert "\n" not in str(error.value)
