"""The tensor map against the state dict of transformers' Qwen3ForCausalLM."""

import json

import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from vime_core.models.tensors import parameters, tensor_shapes
from vime_qwen3.qwen3 import Qwen3

CONFIGS: dict[str, dict[str, object]] = {
    "tiny": {},
    "tied": {"tie_word_embeddings": True},
    "head_dim_is_hidden_over_heads": {"head_dim": 16},
    "no_grouping": {"num_key_value_heads": 4},
    "one_kv_head": {"num_key_value_heads": 1, "num_hidden_layers": 3},
}


def reference_shapes(config):
    with torch.device("meta"):
        model = Qwen3ForCausalLM(Qwen3Config.from_dict(json.loads(json.dumps(config))))
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    if config["tie_word_embeddings"]:
        del shapes["lm_head.weight"]  # listed by the module, not written to the checkpoint
    return shapes


@pytest.mark.parametrize("name", CONFIGS)
def test_names_and_shapes_are_those_of_transformers(name):
    family = Qwen3()
    config = {**family.tiny(), **CONFIGS[name]}
    geometry = family.geometry(config, None)
    found = tensor_shapes(geometry, family.tensor_map(geometry))
    assert found == reference_shapes(config)
    assert ("lm_head.weight" in found) is not config["tie_word_embeddings"]


def test_each_parameter_once_in_model_order():
    family = Qwen3()
    geometry = family.geometry(family.tiny(), None)
    found = list(parameters(geometry, family.tensor_map(geometry)))
    names = [name for parameter in found for name in parameter.hf_names]
    assert len(names) == len(set(names))
    assert [parameter.layer for parameter in found] == [None, *[0] * 8, *[1] * 8, None, None]
    assert [parameter.rule.role for parameter in found if parameter.layer is None] == [
        "embedding",
        "final_norm",
        "output",
    ]
    assert all("{" not in name for name in names)


def test_fused_parameters_split_rows_and_their_partners_columns():
    family = Qwen3()
    rules = {rule.role: rule for rule in family.tensor_map(family.geometry(family.tiny(), None))}
    assert [rules[role].transform for role in ("layer.attention.qkv", "layer.mlp.gate_up")] == ["qkv", "gate_up"]
    by_shard = {shard: {role for role, rule in rules.items() if rule.shard == shard} for shard in ("rows", "columns")}
    assert by_shard["rows"] == {"embedding", "layer.attention.qkv", "layer.mlp.gate_up", "output"}
    assert by_shard["columns"] == {"layer.attention.out", "layer.mlp.down"}


def test_tiny_has_what_makes_qwen3_hard():
    geometry = Qwen3().geometry(Qwen3().tiny(), None)
    assert geometry.head_dim * geometry.num_heads != geometry.hidden_size
    assert 1 < geometry.num_kv_heads < geometry.num_heads
