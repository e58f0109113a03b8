"""Tensor maps written out, with experts too."""

import dataclasses

from vime_core.models.geometry import ExpertGeometry, TensorRule
from vime_core.models.tensors import parameters, tensor_shapes


def test_shapes_of_a_dense_model(toy):
    geometry = toy.geometry(toy.tiny(), None)
    assert tensor_shapes(geometry, toy.tensor_map(geometry)) == {
        "embed.weight": (12, 8),
        "layers.0.gate.weight": (16, 8),
        "layers.0.up.weight": (16, 8),
        "layers.1.gate.weight": (16, 8),
        "layers.1.up.weight": (16, 8),
        "norm.weight": (8,),
        "lm_head.weight": (12, 8),
    }


def test_experts_in_sparse_layers_only(toy):
    geometry = toy.geometry({**toy.tiny(), "num_hidden_layers": 3}, None)
    experts = ExpertGeometry(num_experts=2, top_k=1, ffn_size=4, normalize_top_k=True, dense_layers=frozenset({1}))
    geometry = dataclasses.replace(geometry, experts=experts)
    router = TensorRule("layer.moe.router", ("layers.{layer}.router",), ((2, 8),), "copy", "none")
    down = TensorRule("layer.moe.expert.down", ("layers.{layer}.experts.{expert}.down",), ((8, 4),), "copy", "columns")
    tensor_map = toy.tensor_map(geometry)
    found = list(parameters(geometry, [tensor_map[0], tensor_map[1], router, down, *tensor_map[2:]]))
    inside = [(p.rule.role, p.layer, p.expert, p.hf_names[0]) for p in found if p.layer is not None]
    assert inside == [
        ("layer.moe.router", 0, None, "layers.0.router"),
        ("layer.moe.expert.down", 0, 0, "layers.0.experts.0.down"),
        ("layer.moe.expert.down", 0, 1, "layers.0.experts.1.down"),
        ("layer.mlp.gate_up", 1, None, "layers.1.gate.weight"),
        ("layer.moe.router", 2, None, "layers.2.router"),
        ("layer.moe.expert.down", 2, 0, "layers.2.experts.0.down"),
        ("layer.moe.expert.down", 2, 1, "layers.2.experts.1.down"),
    ]
