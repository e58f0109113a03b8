"""Folders that transformers writes are read, and folders that are exported load in transformers."""

import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from vime_core.errors import ModelError
from vime_core.models.checkpoint import SafetensorsFolder
from vime_core.models.export import export_model
from vime_core.models.hf import inspect_model
from vime_core.models.tensors import tensor_shapes
from vime_qwen3.qwen3 import Qwen3

FAMILIES = {"qwen3": Qwen3()}


@pytest.fixture(params=[{}, {"tie_word_embeddings": True}], ids=["untied", "tied"])
def saved(request, tmp_path):
    torch.manual_seed(0)
    config = Qwen3Config.from_dict({**Qwen3().tiny(), **request.param})
    model = Qwen3ForCausalLM(config)
    folder = tmp_path / "model"
    model.save_pretrained(folder, max_shard_size="100KB")
    (folder / "tokenizer.json").write_text("{}")
    return folder, model


def test_export_loads_in_transformers_bit_equal(saved, tmp_path):
    folder, model = saved
    source = inspect_model(folder, FAMILIES)
    names = tensor_shapes(source.geometry, source.tensor_map)
    export_model(tmp_path / "exported", source, SafetensorsFolder(folder).load(names), max_shard_bytes=50_000)
    loaded = Qwen3ForCausalLM.from_pretrained(tmp_path / "exported").state_dict()
    assert loaded.keys() == model.state_dict().keys()
    for name, tensor in model.state_dict().items():
        assert torch.equal(loaded[name], tensor)


def test_weights_of_another_size_are_refused(saved, tmp_path):
    folder, _ = saved
    config_file = folder / "config.json"
    config_file.write_text(config_file.read_text().replace('"head_dim": 32', '"head_dim": 16'))
    with pytest.raises(ModelError, match=r"q_proj.weight has shape \[128, 64\], config.json asks for \[64, 64\]"):
        inspect_model(folder, FAMILIES)
