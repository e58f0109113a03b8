"""A small family and model folders for it."""

import json
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import save_file

from vime_core.models.geometry import ModelGeometry, TensorRule
from vime_core.models.hf_config import read_eos_token_ids, read_flag, read_int
from vime_core.models.tensors import tensor_shapes

HIDDEN = 8


class ToyFamily:
    """Two tensors a layer: enough to test folders."""

    model_type = "toy"

    def matches(self, hf_config):
        return hf_config.get("model_type") == self.model_type

    def geometry(self, hf_config, generation_config):
        return ModelGeometry(
            family="toy",
            num_layers=read_int(hf_config, "num_hidden_layers"),
            hidden_size=HIDDEN,
            num_heads=2,
            num_kv_heads=1,
            head_dim=4,
            ffn_size=16,
            vocab_size=read_int(hf_config, "vocab_size"),
            max_positions=32,
            norm_eps=1e-6,
            rope_theta=1e4,
            rope_scaling=None,
            tied_embeddings=read_flag(hf_config, "tie_word_embeddings", False),
            qk_norm=True,
            attention_bias=False,
            activation="silu",
            init_std=0.02,
            eos_token_ids=read_eos_token_ids(hf_config, generation_config),
            pad_token_id=None,
        )

    def tensor_map(self, geometry):
        table = (geometry.vocab_size, HIDDEN)
        rules = [
            TensorRule("embedding", ("embed.weight",), (table,), "copy", "rows"),
            TensorRule(
                "layer.mlp.gate_up",
                ("layers.{layer}.gate.weight", "layers.{layer}.up.weight"),
                ((16, HIDDEN), (16, HIDDEN)),
                "gate_up",
                "rows",
            ),
            TensorRule("final_norm", ("norm.weight",), ((HIDDEN,),), "copy", "none"),
        ]
        if not geometry.tied_embeddings:
            rules.append(TensorRule("output", ("lm_head.weight",), (table,), "copy", "rows"))
        return rules

    def tiny(self):
        return {"model_type": "toy", "vocab_size": 12, "num_hidden_layers": 2, "eos_token_id": 1, "dtype": "float32"}


@pytest.fixture
def toy():
    return ToyFamily()


@pytest.fixture
def make_folder(tmp_path, toy):
    """Write a model folder; `weights` maps file names to lists of tensor names, None for one file."""

    def make(name="model", *, config=None, files=None, dtype=torch.float32, edit=None):
        folder = tmp_path / name
        folder.mkdir()
        hf_config = {**toy.tiny(), **(config or {})}
        (folder / "config.json").write_text(json.dumps(hf_config))
        (folder / "tokenizer.json").write_text("{}")
        (folder / "tokenizer_config.json").write_text('{"a": 1}')
        geometry = toy.geometry(hf_config, None)
        generator = torch.Generator().manual_seed(5)
        tensors = {
            key: torch.randn(shape, generator=generator).to(dtype)
            for key, shape in tensor_shapes(geometry, toy.tensor_map(geometry)).items()
        }
        if edit is not None:
            edit(tensors)
        write_weights(folder, tensors, files)
        return SimpleNamespace(path=folder, tensors=tensors)

    return make


def write_weights(folder, tensors, files):
    if files is None:
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        return
    names = list(tensors)
    shards = [f"model-{index + 1:05d}-of-{files:05d}.safetensors" for index in range(files)]
    weight_map = {name: shards[index % files] for index, name in enumerate(names)}
    for shard in shards:
        save_file({name: tensors[name] for name in names if weight_map[name] == shard}, folder / shard)
    index = {"metadata": {}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
