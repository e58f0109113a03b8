"""Checks of a model folder: each failure is one line that names the thing."""

import json
import logging
import shutil
import subprocess
import sys

import pytest
import torch

from vime_core.errors import ModelError
from vime_core.models.checkpoint import SafetensorsFolder, read_header
from vime_core.models.hf import inspect_model


def fails(folder, families, family_name="auto"):
    with pytest.raises(ModelError) as caught:
        inspect_model(folder, families, family_name)
    message = str(caught.value)
    assert "\n" not in message
    assert str(folder) in message or "family" in message
    return message


@pytest.mark.parametrize("files", [None, 1, 3])
def test_accepts_a_whole_folder(make_folder, toy, files):
    made = make_folder(files=files)
    (made.path / "generation_config.json").write_text('{"eos_token_id": [3, 1]}')
    model = inspect_model(made.path, {"toy": toy})
    assert model.family_name == "toy"
    assert model.geometry.eos_token_ids == (3, 1)
    assert model.hf_config["vocab_size"] == 12
    assert model.generation_config == {"eos_token_id": [3, 1]}
    assert model.extra_tensors == ()


@pytest.mark.parametrize("files", [None, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_loads_tensors_in_the_order_asked_for(make_folder, files, dtype):
    made = make_folder(files=files, dtype=dtype)
    names = sorted(made.tensors, reverse=True)
    loaded = list(SafetensorsFolder(made.path).load(names))
    assert [name for name, _ in loaded] == names
    for name, tensor in loaded:
        assert tensor.dtype == dtype
        assert torch.equal(tensor, made.tensors[name])


def test_load_refuses_an_unknown_name(make_folder):
    folder = SafetensorsFolder(make_folder().path)
    with pytest.raises(ModelError, match="has no tensor nosuch"):
        list(folder.load(["nosuch"]))


def test_missing_folder(tmp_path, toy):
    assert "is not a folder" in fails(tmp_path / "nosuch", {"toy": toy})


def test_missing_config(make_folder, toy):
    made = make_folder()
    (made.path / "config.json").unlink()
    assert "has no config.json" in fails(made.path, {"toy": toy})


@pytest.mark.parametrize("content", ["{", "[1]", "\xff"])
def test_malformed_config(make_folder, toy, content):
    made = make_folder()
    (made.path / "config.json").write_bytes(content.encode("latin-1"))
    assert "config.json" in fails(made.path, {"toy": toy})


def test_malformed_generation_config(make_folder, toy):
    made = make_folder()
    (made.path / "generation_config.json").write_text("no")
    assert "generation_config.json cannot be read as JSON" in fails(made.path, {"toy": toy})


def test_family_refusals_name_the_folder(make_folder, toy):
    made = make_folder()
    config = json.loads((made.path / "config.json").read_text())
    del config["num_hidden_layers"]
    (made.path / "config.json").write_text(json.dumps(config))
    assert "num_hidden_layers is missing" in fails(made.path, {"toy": toy})


def test_no_family(make_folder, toy):
    made = make_folder()
    toy_of_another_name = {"other": type("Other", (type(toy),), {"model_type": "other"})()}
    assert "model_type 'toy') is of no known family (other)" in fails(made.path, toy_of_another_name)
    assert "none is installed" in fails(made.path, {})


def test_named_family_must_exist_and_match(make_folder, toy):
    made = make_folder()
    other = type("Other", (type(toy),), {"model_type": "other"})()
    assert inspect_model(made.path, {"toy": toy, "other": other}, "toy").family_name == "toy"
    assert "is not of family other" in fails(made.path, {"toy": toy, "other": other}, "other")
    assert "no model family 'nosuch'; known families: toy" in fails(made.path, {"toy": toy}, "nosuch")


def test_several_families_match(make_folder, toy):
    made = make_folder()
    assert "model=a or model=b" in fails(made.path, {"b": toy, "a": toy})


def test_quantised_config(make_folder, toy):
    made = make_folder(config={"quantization_config": {"quant_method": "fp8"}})
    assert "quantised" in fails(made.path, {"toy": toy})


def test_no_end_of_sequence(make_folder, toy):
    made = make_folder(config={"eos_token_id": None})
    assert "eos_token_id" in fails(made.path, {"toy": toy})


@pytest.mark.parametrize("file", ["tokenizer.json", "tokenizer.model"])
def test_tokenizer_files(make_folder, toy, file):
    made = make_folder()
    (made.path / "tokenizer.json").unlink()
    assert "has no tokenizer" in fails(made.path, {"toy": toy})
    (made.path / file).touch()
    assert inspect_model(made.path, {"toy": toy})


def test_vocabulary_without_merges_is_no_tokenizer(make_folder, toy):
    made = make_folder()
    (made.path / "tokenizer.json").rename(made.path / "vocab.json")
    assert "has no tokenizer" in fails(made.path, {"toy": toy})
    (made.path / "merges.txt").touch()
    assert inspect_model(made.path, {"toy": toy})


def test_no_weights(make_folder, toy):
    made = make_folder()
    (made.path / "model.safetensors").unlink()
    assert "has no weights" in fails(made.path, {"toy": toy})


def test_pickled_weights_are_to_be_converted(make_folder, toy):
    made = make_folder()
    (made.path / "model.safetensors").rename(made.path / "pytorch_model.bin")
    assert "convert them" in fails(made.path, {"toy": toy})


def test_missing_shard(make_folder, toy):
    made = make_folder(files=3)
    (made.path / "model-00002-of-00003.safetensors").unlink()
    message = fails(made.path, {"toy": toy})
    assert "lacks 1 of 3 weight files" in message
    assert "model-00002-of-00003.safetensors" in message


@pytest.mark.parametrize(
    "content", ["{", "{}", '{"weight_map": {}}', '{"weight_map": {"a": "../x"}}', '{"weight_map": [1]}']
)
def test_malformed_index(make_folder, toy, content):
    made = make_folder(files=2)
    (made.path / "model.safetensors.index.json").write_text(content)
    assert "model.safetensors.index.json" in fails(made.path, {"toy": toy})


def test_index_that_places_a_tensor_wrongly(make_folder, toy):
    made = make_folder(files=2)
    index_file = made.path / "model.safetensors.index.json"
    index = json.loads(index_file.read_text())
    index["weight_map"]["embed.weight"] = "model-00002-of-00002.safetensors"
    index_file.write_text(json.dumps(index))
    assert "lacks tensor embed.weight" in fails(made.path, {"toy": toy})


def test_missing_tensor(make_folder, toy):
    made = make_folder(edit=lambda tensors: [tensors.pop(f"layers.{i}.up.weight") for i in range(2)])
    assert "lacks tensor layers.0.up.weight (and 1 more)" in fails(made.path, {"toy": toy})


def test_wrong_shape(make_folder, toy):
    made = make_folder(edit=lambda tensors: tensors.update({"norm.weight": torch.ones(9)}))
    assert "tensor norm.weight has shape [9], config.json asks for [8]" in fails(made.path, {"toy": toy})


def test_transposed_tensor_of_equal_size_is_found(make_folder, toy):
    def transpose(tensors):
        tensors["layers.1.gate.weight"] = tensors["layers.1.gate.weight"].t().contiguous()

    assert "layers.1.gate.weight has shape [8, 16]" in fails(make_folder(edit=transpose).path, {"toy": toy})


def test_integer_weights(make_folder, toy):
    made = make_folder(dtype=torch.int8)
    assert "is I8 (and 6 more)" in fails(made.path, {"toy": toy})


def test_extra_tensors_are_reported(make_folder, toy, caplog):
    tied = {"tie_word_embeddings": True}
    made = make_folder(config=tied, edit=lambda tensors: tensors.update({"lm_head.weight": torch.zeros(12, 8)}))
    with caplog.at_level(logging.WARNING):
        model = inspect_model(made.path, {"toy": toy})
    assert model.extra_tensors == ("lm_head.weight",)
    assert "lm_head.weight is not used" in caplog.text


def test_file_cut_off_in_the_data(make_folder, toy):
    made = make_folder()
    file = made.path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-3])
    assert "its header asks for" in fails(made.path, {"toy": toy})


@pytest.mark.parametrize("length", [0, 5, 40])
def test_file_cut_off_in_the_header(make_folder, toy, length):
    made = make_folder()
    file = made.path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:length])
    assert "download it again" in fails(made.path, {"toy": toy})


def test_file_with_bytes_appended(make_folder, toy):
    made = make_folder()
    with (made.path / "model.safetensors").open("ab") as stream:
        stream.write(b"x")
    assert "its header asks for" in fails(made.path, {"toy": toy})


def test_git_lfs_pointer(make_folder, toy):
    made = make_folder()
    (made.path / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    assert "git lfs pull" in fails(made.path, {"toy": toy})


@pytest.mark.parametrize(
    "header",
    [
        b"not json",
        b"[]",
        b'{"a": 1}',
        b'{"a": {"dtype": "F32", "shape": [2]}}',
        b'{"a": {"dtype": "F32", "shape": [2], "data_offsets": [0]}}',
        b'{"a": {"dtype": "F32", "shape": [3], "data_offsets": [0, 8]}}',
        b'{"a": {"dtype": "F32", "shape": [2], "data_offsets": [4, 12]}}',
        b'{"a": {"dtype": "F32", "shape": null, "data_offsets": [0, 8]}}',
    ],
)
def test_damaged_header(tmp_path, header):
    file = tmp_path / "model.safetensors"
    file.write_bytes(len(header).to_bytes(8, "little") + header + bytes(8))
    with pytest.raises(ModelError, match="download it again"):
        read_header(file)


def test_header_agrees_with_the_safetensors_library(make_folder):
    made = make_folder(dtype=torch.bfloat16)
    header = read_header(made.path / "model.safetensors")
    assert {name: info.shape for name, info in header.items()} == {
        name: tuple(tensor.shape) for name, tensor in made.tensors.items()
    }
    assert {info.dtype for info in header.values()} == {"BF16"}


def test_inspection_reads_no_tensor_data_and_imports_no_torch(make_folder, toy):
    made = make_folder(files=2)
    code = (
        "import sys; from pathlib import Path; from vime_core.models.checkpoint import SafetensorsFolder;"
        "import vime_core.models.hf, vime_core.models.export;"
        f"print(len(SafetensorsFolder(Path({str(made.path)!r})).tensors), 'torch' in sys.modules)"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert answer.stdout.split() == ["7", "False"]


def test_symbolic_links_are_followed(make_folder, toy, tmp_path):
    made = make_folder()
    linked = tmp_path / "linked"
    linked.mkdir()
    for file in made.path.iterdir():
        (linked / file.name).symlink_to(file)
    assert inspect_model(linked, {"toy": toy}).path == linked
    shutil.rmtree(made.path)
    assert "has no config.json" in fails(linked, {"toy": toy})
