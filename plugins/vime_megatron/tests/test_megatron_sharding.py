"""Shard, then merge, is the identity: random shapes and layouts, for every role, without processes."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vime_core.models.tensors import parameters
from vime_megatron.config import MegatronConfig
from vime_megatron.layout import plan_layout
from vime_megatron.sharding import fuse, merge, shard, shard_shape
from vime_qwen3.qwen3 import Qwen3
from vime_qwen3.qwen3_moe import Qwen3Moe

if TYPE_CHECKING:
    from collections.abc import Callable

    from vime_core.models.geometry import ModelGeometry, TensorRule


@st.composite
def models(draw: Callable[..., Any]) -> tuple[ModelGeometry, list[TensorRule], MegatronConfig]:
    """A family's model of random sizes, and a layout that divides them."""
    tensor, expert_tensor, expert = (draw(st.sampled_from([1, 2, 3, 4])) for _ in range(3))
    groups = tensor * draw(st.integers(1, 2))
    moe = draw(st.booleans())
    family = Qwen3Moe() if moe else Qwen3()
    config = {
        **family.tiny(),
        "hidden_size": 12 * draw(st.integers(1, 2)),
        "num_key_value_heads": groups,
        "num_attention_heads": groups * draw(st.integers(1, 3)),
        "head_dim": 2 * draw(st.integers(1, 3)),
        "intermediate_size": tensor * draw(st.integers(1, 5)),
        "vocab_size": draw(st.integers(3, 29)),
        "num_hidden_layers": draw(st.integers(1, 4)),
        "mlp_only_layers": [],
        "tie_word_embeddings": draw(st.booleans()),
    }
    if moe:
        config |= {
            "num_experts": expert * draw(st.integers(1, 2)),
            "num_experts_per_tok": 1,
            "moe_intermediate_size": expert_tensor * draw(st.integers(1, 4)),
        }
    pipeline = draw(st.integers(1, config["num_hidden_layers"]))
    geometry = family.geometry(config, None)
    settings_of_layout = {"expert_parallel": expert, "expert_tensor_parallel": expert_tensor} if moe else {}
    world = math.lcm(tensor * pipeline, expert * expert_tensor * pipeline if moe else 1)
    layout = MegatronConfig(tensor_parallel=tensor, pipeline_parallel=pipeline, world_size=world, **settings_of_layout)
    return geometry, family.tensor_map(geometry), layout


@given(models())
@settings(max_examples=300, deadline=None)
def test_shard_then_merge_is_the_identity(made: tuple[ModelGeometry, list[TensorRule], MegatronConfig]) -> None:
    geometry, tensor_map, config = made
    layout = plan_layout(config, geometry)
    for item in parameters(geometry, tensor_map):
        rule, size = item.rule, layout.tensor if item.expert is None else layout.expert_tensor
        parts = _distinct(rule)
        shares = [shard(rule, parts, geometry, rank, size) for rank in range(size)]
        assert {tuple(share.shape) for share in shares} == {shard_shape(rule, size)}, rule.role
        merged = merge(rule, shares, geometry)
        assert all(tensor.is_contiguous() for tensor in merged), rule.role
        assert all(torch.equal(a, b) for a, b in zip(merged, parts, strict=True)), rule.role


@given(models())
@settings(max_examples=100, deadline=None)
def test_every_rank_gets_whole_heads_and_matching_rows(
    made: tuple[ModelGeometry, list[TensorRule], MegatronConfig],
) -> None:
    """Against the definition: by heads for qkv, by rows of gate and of up for the MLP."""
    geometry, tensor_map, config = made
    size = config.tensor_parallel
    rules = {rule.role: rule for rule in tensor_map}
    qkv = rules["layer.attention.qkv"]
    q, k, v = parts = _distinct(qkv)
    heads, head = geometry.num_heads // geometry.num_kv_heads, geometry.head_dim
    for rank in range(size):
        groups = range(rank * geometry.num_kv_heads // size, (rank + 1) * geometry.num_kv_heads // size)
        expected = [
            part
            for g in groups
            for part in (q[g * heads * head : (g + 1) * heads * head], *(x[g * head : (g + 1) * head] for x in (k, v)))
        ]
        assert torch.equal(shard(qkv, parts, geometry, rank, size), torch.cat(expected))
    mlp = rules["layer.mlp.gate_up"]
    gate, up = _distinct(mlp)
    rows = len(gate) // size
    for rank in range(size):
        mine = slice(rank * rows, (rank + 1) * rows)
        assert torch.equal(shard(mlp, [gate, up], geometry, rank, size), torch.cat([gate[mine], up[mine]]))


def test_a_vocabulary_that_does_not_divide_ends_in_rows_of_zeros() -> None:
    geometry = Qwen3().geometry({**Qwen3().tiny(), "vocab_size": 7}, None)
    rule = Qwen3().tensor_map(geometry)[0]
    (table,) = _distinct(rule)
    shares = [shard(rule, [table], geometry, rank, 4) for rank in range(4)]
    assert all(share.shape == (2, geometry.hidden_size) for share in shares)
    assert not shares[3][1].any()
    assert torch.equal(torch.cat(shares)[:7], table)


@pytest.mark.parametrize("fault", ["shares in another order", "one part too early"])
def test_a_wrong_order_is_no_identity(fault: str) -> None:
    geometry = Qwen3().geometry(Qwen3().tiny(), None)
    for rule in Qwen3().tensor_map(geometry):
        if rule.shard == "none":
            continue
        parts = _distinct(rule)
        shares = [shard(rule, parts, geometry, rank, 2) for rank in range(2)]
        if fault == "shares in another order":
            shares.reverse()
        else:
            shares = [fuse(rule, parts, geometry).roll(1, 0).chunk(2)[rank] for rank in range(2)]
            if rule.shard == "columns":
                continue
        merged = merge(rule, shares, geometry)
        assert not all(torch.equal(a, b) for a, b in zip(merged, parts, strict=True)), rule.role


def _distinct(rule: TensorRule) -> list[torch.Tensor]:
    """Tensors of the rule's shapes in which every number is there once."""
    counts = [math.prod(shape) for shape in rule.hf_shapes]
    numbers = torch.arange(1.0, sum(counts) + 1.0).split(counts)
    return [part.view(shape) for part, shape in zip(numbers, rule.hf_shapes, strict=True)]
