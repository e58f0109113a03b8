"""Geometry of models with experts, and folders in both spellings of their tensors."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

from vime_core.errors import ModelError
from vime_core.models.export import export_model
from vime_core.models.hf import inspect_model
from vime_core.models.stacked import open_weights
from vime_core.models.tensors import tensor_shapes
from vime_qwen3.qwen3 import Qwen3
from vime_qwen3.qwen3_moe import Qwen3Moe

FAMILIES = {"qwen3": Qwen3(), "qwen3_moe": Qwen3Moe()}
TINY = Qwen3Moe().tiny()


def geometry(**changes):
    config = {key: value for key, value in {**TINY, **changes}.items() if value is not ...}
    return Qwen3Moe().geometry(config, None)


def test_a_published_model():
    """Qwen3-30B-A3B."""
    found = geometry(
        hidden_size=2048,
        intermediate_size=6144,
        moe_intermediate_size=768,
        num_hidden_layers=48,
        num_attention_heads=32,
        num_key_value_heads=4,
        head_dim=128,
        num_experts=128,
        num_experts_per_tok=8,
        mlp_only_layers=[],
        vocab_size=151936,
    )
    experts = found.experts
    assert (experts.num_experts, experts.top_k, experts.ffn_size, experts.normalize_top_k) == (128, 8, 768, True)
    assert experts.dense_layers == frozenset()
    shapes = tensor_shapes(found, Qwen3Moe().tensor_map(found))
    assert len(shapes) == 48 * (9 + 3 * 128) + 3
    assert 30.5e9 < sum(torch.Size(shape).numel() for shape in shapes.values()) < 30.6e9


@pytest.mark.parametrize("step", [1, 2, 3, 4])
@pytest.mark.parametrize("named", [None, [], [0], [1, 3], [7, 99]])
def test_dense_layers_are_those_of_transformers(step, named):
    changes = {"num_hidden_layers": 8, "decoder_sparse_step": step, "mlp_only_layers": named, "hidden_size": 32}
    with torch.device("meta"):
        layers = Qwen3MoeForCausalLM(Qwen3MoeConfig(**{**TINY, **changes})).model.layers
    dense = {index for index, layer in enumerate(layers) if hasattr(layer.mlp, "gate_proj")}
    assert geometry(**changes).experts.dense_layers == dense


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"num_experts": ...}, "num_experts is missing"),
        ({"num_experts": 0}, "num_experts must be a whole number above 0"),
        ({"num_experts_per_tok": 5}, "num_experts_per_tok 5 is more than num_experts 4"),
        ({"num_local_experts": 8}, "num_experts 4 and num_local_experts 8 contradict"),
        ({"mlp_only_layers": [0, 1, 2]}, r"no layer has experts \(decoder_sparse_step 1, mlp_only_layers \[0, 1, 2\]"),
        ({"decoder_sparse_step": 4}, "no layer has experts"),
        ({"mlp_only_layers": ["1"]}, "mlp_only_layers must be a list of layers"),
        ({"norm_topk_prob": 1}, "norm_topk_prob must be true or false"),
        ({"moe_intermediate_size": ...}, "moe_intermediate_size is missing"),
        ({"attention_bias": True}, "attention_bias is not supported by family qwen3_moe"),
    ],
)
def test_what_is_wrong_is_told(changes, told):
    with pytest.raises(ModelError, match=told):
        geometry(**changes)


def test_transformers_own_name_for_the_number_of_experts():
    assert geometry(num_experts=..., num_local_experts=4) == geometry() == geometry(num_local_experts=4)
    assert not geometry(norm_topk_prob=...).experts.normalize_top_k


@pytest.fixture(params=[True, False], ids=["one by one", "stacked"])
def saved(request, tmp_path):
    torch.manual_seed(0)
    model = Qwen3MoeForCausalLM(Qwen3MoeConfig(**TINY))
    folder = tmp_path / "model"
    model.save_pretrained(folder, max_shard_size="100KB", save_original_format=request.param)
    (folder / "tokenizer.json").write_text("{}")
    return folder, model


def test_export_loads_in_transformers_bit_equal(saved, tmp_path):
    folder, model = saved
    source = inspect_model(folder, FAMILIES)
    assert (source.family_name, source.extra_tensors) == ("qwen3_moe", ())
    weights = open_weights(folder, source.geometry, source.tensor_map)
    names = tensor_shapes(source.geometry, source.tensor_map)
    export_model(tmp_path / "exported", source, weights.load(names), max_shard_bytes=50_000)
    loaded = Qwen3MoeForCausalLM.from_pretrained(tmp_path / "exported").state_dict()
    assert loaded.keys() == model.state_dict().keys()
    for name, tensor in model.state_dict().items():
        assert torch.equal(loaded[name], tensor), name


@pytest.mark.parametrize("experts", [3, 5])
def test_another_number_of_experts_than_the_configuration_says(saved, experts):
    folder, _ = saved
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "num_local_experts": experts}))
    told = r"gate\.weight has shape \[4, 64\]|gate_up_proj has shape \[4, 64, 64\]|lacks tensor .*experts\.4\."
    with pytest.raises(ModelError, match=told):
        inspect_model(folder, FAMILIES)


def test_an_expert_that_is_missing_is_named(tmp_path):
    Qwen3MoeForCausalLM(Qwen3MoeConfig(**TINY)).save_pretrained(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors["model.layers.2.mlp.experts.3.up_proj.weight"]
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"lacks tensor model\.layers\.2\.mlp\.experts\.3\.up_proj\.weight"):
        inspect_model(tmp_path, FAMILIES)
