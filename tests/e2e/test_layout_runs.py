"""Whole runs whose trainer shares the model out: engines get whole weights, and a run goes on under another layout."""

from __future__ import annotations

import shutil

import pytest

pytestmark = [pytest.mark.full, pytest.mark.engine, pytest.mark.ranks]

EXACT = 1e-4
DIFFERENCE = "train/train_rollout_logprob_abs_diff"


def test_a_run_goes_on_under_another_layout(world):
    """Tensor and sequence parallel, then in pipeline stages, then on one rank; the embedding is tied."""
    first = world.run("train.world_size=2", "train.tensor_parallel=2", "train.steps=2", "checkpoint.every=1")
    assert first.status == 0, first.output
    again = ["resume.mode=must", f"resume.run={first.folder}", "checkpoint.every=1"]
    second = world.run(*again, "train.world_size=2", "train.pipeline_parallel=2", "train.steps=4")
    assert second.status == 0, second.output
    third = world.run(*again, "train.steps=5")
    assert third.status == 0, third.output
    assert [row["step"] for row in third.metrics] == [1, 2, 3, 4, 5]
    assert max(row[DIFFERENCE] for row in third.metrics) < EXACT
    assert all(row["train/grad_norm"] > 0 for row in third.metrics)


def test_experts_are_shared_out(world, tmp_path):
    """Expert parallel over two data-parallel ranks."""
    import torch
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    folder = tmp_path / "moe"
    shutil.copytree(world.model, folder, ignore=shutil.ignore_patterns("*.safetensors", "config.json"))
    torch.manual_seed(0)
    config = Qwen3MoeConfig(
        vocab_size=259,
        hidden_size=64,
        intermediate_size=160,
        moe_intermediate_size=32,
        num_experts=4,
        num_experts_per_tok=2,
        norm_topk_prob=True,
        mlp_only_layers=[1],
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=2048,
        initializer_range=0.1,
        bos_token_id=None,
        eos_token_id=258,
        pad_token_id=None,
    )
    Qwen3MoeForCausalLM(config).save_pretrained(folder)
    finished = world.run(
        f"model.path={folder}",
        "train.world_size=2",
        "train.expert_parallel=2",
        "train.steps=3",
        "train.moe_aux_loss=0.01",
    )
    assert finished.status == 0, finished.output
    assert max(row[DIFFERENCE] for row in finished.metrics) < EXACT


def test_a_layout_that_cannot_be_starts_nothing(world):
    finished = world.run("train.world_size=4", "train.tensor_parallel=4")
    assert finished.status == 2
    assert finished.folder is None
    assert "train.tensor_parallel=4 does not divide the model's 2 key-value heads" in finished.output
    assert finished.output.count("\n") <= 2
