import json

import pytest
from safetensors.torch import save_file

from vime_core.models.fingerprint import model_fingerprint


@pytest.fixture
def folder(tmp_path):
    import torch

    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "tokenizer.json").write_text("{}")
    torch.manual_seed(0)
    save_file({"a": torch.randn(3000, 1000), "b": torch.zeros(10)}, tmp_path / "model.safetensors")
    return tmp_path


def changes(folder, before):
    after = model_fingerprint(folder)
    return sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))


def test_names_what_changed(folder):
    before = model_fingerprint(folder)
    assert sorted(before) == ["config.json", "model.safetensors", "tokenizer.json"]
    assert changes(folder, before) == []
    (folder / "tokenizer.json").write_text("{ }")
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": 1}))
    (folder / "README.md").write_text("not read by a run")
    assert changes(folder, before) == ["generation_config.json", "tokenizer.json"]


def test_copied_and_touched_files_are_the_same(folder):
    before = model_fingerprint(folder)
    for file in folder.iterdir():
        file.write_bytes(file.read_bytes())
    assert changes(folder, before) == []


def test_weights_of_another_training_step_are_seen(folder):
    import torch

    before = model_fingerprint(folder)
    torch.manual_seed(0)
    save_file({"a": torch.randn(3000, 1000) * (1 + 1e-6), "b": torch.zeros(10)}, folder / "model.safetensors")
    assert changes(folder, before) == ["model.safetensors"]


def test_the_last_tensor_is_looked_at(folder):
    import torch

    before = model_fingerprint(folder)
    torch.manual_seed(0)
    save_file({"a": torch.randn(3000, 1000), "b": torch.ones(10)}, folder / "model.safetensors")
    assert changes(folder, before) == ["model.safetensors"]
