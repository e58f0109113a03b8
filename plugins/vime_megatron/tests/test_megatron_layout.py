"""Layouts that cannot be are told in one line, from numbers alone."""

from __future__ import annotations

import shutil
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from vime_core.config.compose import compose
from vime_core.config.validate import check_model
from vime_core.errors import ConfigError
from vime_megatron.config import MegatronConfig
from vime_megatron.layout import plan_layout
from vime_qwen3.qwen3 import Qwen3
from vime_qwen3.qwen3_moe import Qwen3Moe

if TYPE_CHECKING:
    from pathlib import Path

DENSE = Qwen3().geometry(Qwen3().tiny(), None)
MOE = Qwen3Moe().geometry(Qwen3Moe().tiny(), None)

WRONG: list[tuple[Any, dict[str, Any], str]] = [
    (replace(DENSE, num_heads=6), {"tensor_parallel": 4}, r"tensor_parallel=4 .* 6 attention heads; .* of 1, 2, 3, 6$"),
    (DENSE, {"tensor_parallel": 4, "world_size": 4}, r"tensor_parallel=4 .* 2 key-value heads; .* one of 1, 2$"),
    (replace(DENSE, ffn_size=161), {"tensor_parallel": 2, "world_size": 2}, r"161 rows of its MLP"),
    (DENSE, {"tensor_parallel": 2}, r"world_size=1 is no multiple of .*tensor_parallel=2 .*; set train\.world_size=2$"),
    (DENSE, {"tensor_parallel": 2, "world_size": 5}, r"set train\.world_size=4 or 6$"),
    (DENSE, {"pipeline_parallel": 3, "world_size": 3}, r"pipeline_parallel=3 is more than the model's 2 layers"),
    (DENSE, {"pipeline_parallel": 2, "world_size": 2, "pipeline_layers": [2, 1]}, r"add up to the model's 2 layers"),
    (DENSE, {"pipeline_parallel": 2, "world_size": 2, "pipeline_layers": [2, 0]}, r"must be 2 numbers above 0"),
    (DENSE, {"pipeline_layers": [1, 1]}, r"must be 1 numbers above 0"),
    (DENSE, {"sequence_parallel": True}, r"but train\.tensor_parallel=1; set train\.tensor_parallel"),
    (DENSE, {"expert_parallel": 2, "world_size": 2}, r"expert_parallel=2, but the model has no experts"),
    (DENSE, {"expert_tensor_parallel": 2, "world_size": 2}, r"expert_tensor_parallel=2, but the model has no experts"),
    (DENSE, {"moe_aux_loss": 0.01}, r"moe_aux_loss=0\.01, but the model has no experts"),
    (DENSE, {"moe_grouped_gemm": True}, r"moe_grouped_gemm=true, but the model has no experts; leave it out$"),
    (
        replace(MOE, hidden_size=68),
        {"moe_grouped_gemm": True},
        r"moe_grouped_gemm=true needs .* multiple of 16 bytes, .*dtype=bfloat16 .* 136 and 64 bytes; leave it out$",
    ),
    (
        MOE,
        {"moe_grouped_gemm": True, "expert_tensor_parallel": 8, "world_size": 8},
        r"expert_tensor_parallel=8 the experts' have 128 and 8 bytes",
    ),
    (MOE, {"expert_parallel": 3, "world_size": 3}, r"expert_parallel=3 does not divide the model's 4 experts a layer"),
    (MOE, {"expert_tensor_parallel": 3, "world_size": 3}, r"32 rows of an expert"),
    (
        MOE,
        {"tensor_parallel": 2, "world_size": 2, "sequence_parallel": False},
        r"tensor_parallel=2 with experts needs train\.sequence_parallel=true",
    ),
    (
        DENSE,
        {"context_parallel": 2, "world_size": 2},
        r"context_parallel=2 needs the attention of TransformerEngine.* Set train\.context_parallel=1$",
    ),
    (MOE, {"expert_parallel": 4, "world_size": 2}, r"expert_parallel=4 x .* = 4 ranks; set train\.world_size=4$"),
]


@pytest.mark.parametrize(("geometry", "settings", "told"), WRONG)
def test_a_layout_that_cannot_be_is_told(geometry: Any, settings: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told) as error:
        plan_layout(MegatronConfig(**settings), geometry)
    assert "\n" not in str(error.value)


def test_it_is_told_before_anything_starts(moe_model: Any, tmp_path: Path) -> None:
    """With a model folder and a whole configuration, as `vime train` checks them."""
    folder = tmp_path / "model"
    shutil.copytree(moe_model.path, folder)
    (folder / "tokenizer.json").write_text("{}")
    settings = [f"model.path={folder}", "data.train=/none", "accelerator=cpu", "train.world_size=3"]
    limits = ["rollout.max_prompt_tokens=64", "rollout.max_response_tokens=64"]
    composed = compose([*settings, *limits, "reward=[dapo_math]", "train.expert_parallel=3"], require_available=False)
    with pytest.raises(ConfigError, match=r"expert_parallel=3 does not divide the model's 4 experts"):
        check_model(composed)


def test_layers_are_shared_out_as_evenly_as_it_goes() -> None:
    for stages, expected in ((1, (7,)), (2, (4, 3)), (3, (3, 2, 2)), (7, (1,) * 7)):
        config = MegatronConfig(pipeline_parallel=stages, world_size=stages)
        layout = plan_layout(config, replace(DENSE, num_layers=7))
        assert layout.stage_layers == expected
        stages_of = [layout.stage_of(layer) for layer in range(7)]
        assert stages_of == sorted(stages_of)
        assert [stages_of.index(stage) for stage in range(stages)] == [layout.first_layer(s) for s in range(stages)]


def test_sequence_parallelism_comes_with_tensor_parallelism() -> None:
    def sequence(**settings: Any) -> bool:
        return plan_layout(MegatronConfig(world_size=2, **settings), DENSE).sequence

    assert sequence(tensor_parallel=2)
    assert not sequence(tensor_parallel=2, sequence_parallel=False)
    assert not sequence()


def test_ranks_that_nothing_takes_are_replicas() -> None:
    config = MegatronConfig(world_size=16, tensor_parallel=2, pipeline_parallel=2, expert_parallel=4)
    layout = plan_layout(config, MOE)
    assert (layout.data_parallel, layout.pipeline, layout.whole) == (4, 2, False)
    assert plan_layout(MegatronConfig(world_size=4), MOE).whole
