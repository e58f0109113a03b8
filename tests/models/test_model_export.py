"""Export writes folders that load like the source, whole or not at all."""

import json

import pytest
import torch
from safetensors.torch import load_file

from vime_core.errors import ModelError
from vime_core.models.checkpoint import SafetensorsFolder
from vime_core.models.export import export_model, finish_export, write_parts
from vime_core.models.hf import inspect_model


@pytest.fixture
def source(make_folder, toy):
    made = make_folder("source", files=2)
    (made.path / "generation_config.json").write_text('{"eos_token_id": [1, 2]}')
    (made.path / "chat_template.jinja").write_text("{{ messages }}")
    (made.path / "optimizer.bin").write_text("not copied")
    made.model = inspect_model(made.path, {"toy": toy})
    return made


@pytest.mark.parametrize("max_shard_bytes", [10**9, 600, 1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_round_trip_is_bit_equal(source, toy, tmp_path, max_shard_bytes, dtype):
    tensors = {name: tensor.to(dtype) for name, tensor in source.tensors.items()}
    target = tmp_path / "new" / "exported"
    export_model(target, source.model, reversed(tensors.items()), max_shard_bytes=max_shard_bytes)
    model = inspect_model(target, {"toy": toy})
    assert model.geometry == source.model.geometry
    assert model.hf_config == {**source.model.hf_config, "dtype": str(dtype).removeprefix("torch.")}
    loaded = dict(SafetensorsFolder(target).load(tensors))
    assert loaded.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert loaded[name].dtype == dtype
        assert torch.equal(loaded[name], tensor)


def test_shards_are_bounded_and_indexed(source, tmp_path):
    target = tmp_path / "exported"
    export_model(target, source.model, source.tensors.items(), max_shard_bytes=1024)
    index = json.loads((target / "model.safetensors.index.json").read_text())
    files = sorted(file.name for file in target.glob("*.safetensors"))
    assert len(files) > 1
    assert files == [f"model-{i + 1:05d}-of-{len(files):05d}.safetensors" for i in range(len(files))]
    assert index["metadata"]["total_size"] == sum(t.numel() * 4 for t in source.tensors.values())
    for file in files:
        held = load_file(target / file)
        assert sum(tensor.numel() * 4 for tensor in held.values()) <= 1024
        assert {name for name, place in index["weight_map"].items() if place == file} == held.keys()


def test_one_file_needs_no_index_and_companions_travel(source, tmp_path):
    target = tmp_path / "exported"
    export_model(target, source.model, source.tensors.items())
    assert sorted(file.name for file in target.iterdir()) == [
        "chat_template.jinja",
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    for name in ("generation_config.json", "tokenizer_config.json"):
        assert (target / name).read_bytes() == (source.path / name).read_bytes()


@pytest.mark.parametrize("max_shard_bytes", [10**9, 600, 1])
def test_each_tensor_is_kept_before_the_next_is_taken(source, tmp_path, max_shard_bytes):
    def reused_buffers():
        for name, tensor in source.tensors.items():
            buffer = tensor.clone()
            yield name, buffer
            buffer.fill_(float("nan"))

    export_model(tmp_path / "exported", source.model, reused_buffers(), max_shard_bytes=max_shard_bytes)
    for name, tensor in SafetensorsFolder(tmp_path / "exported").load(source.tensors):
        assert torch.equal(tensor, source.tensors[name])


@pytest.mark.parametrize("max_shard_bytes", [10**9, 1])
def test_strided_and_differentiable_tensors_are_written_whole(source, tmp_path, max_shard_bytes):
    def views():
        for name, tensor in source.tensors.items():
            strided = tensor.t().contiguous().t() if tensor.dim() == 2 else torch.cat([tensor, tensor])[len(tensor) :]
            yield name, strided.requires_grad_()

    export_model(tmp_path / "exported", source.model, views(), max_shard_bytes=max_shard_bytes)
    for name, tensor in SafetensorsFolder(tmp_path / "exported").load(source.tensors):
        assert torch.equal(tensor, source.tensors[name])


def test_existing_folder_is_never_touched(source, tmp_path):
    target = tmp_path / "exported"
    target.mkdir()
    (target / "keep").write_text("me")
    with pytest.raises(ModelError, match="exists already"):
        export_model(target, source.model, source.tensors.items())
    assert [file.name for file in target.iterdir()] == ["keep"]


def broken(tensors, kind):
    items = list(tensors.items())
    if kind == "missing":
        return items[:-1]
    if kind == "repeated":
        return [*items, items[0]]
    if kind == "unknown":
        return [*items, ("nosuch.weight", torch.zeros(1))]
    return [*items[:-1], (items[-1][0], items[-1][1][:-1])]


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("missing", "1 tensors are missing, first lm_head.weight"),
        ("repeated", "embed.weight is exported twice"),
        ("unknown", "nosuch.weight is not in the model's tensor map"),
        ("wrong_shape", "lm_head.weight has shape [11, 8], the model has [12, 8]"),
    ],
)
def test_wrong_tensors_leave_nothing_behind(source, tmp_path, kind, words):
    before = sorted(file.name for file in tmp_path.iterdir())
    with pytest.raises(ModelError) as caught:
        export_model(tmp_path / "exported", source.model, broken(source.tensors, kind), max_shard_bytes=1)
    assert words in str(caught.value)
    assert sorted(file.name for file in tmp_path.iterdir()) == before


def test_failure_of_the_trainer_leaves_nothing_behind(source, tmp_path):
    def failing():
        yield next(iter(source.tensors.items()))
        raise RuntimeError("rank lost")

    before = sorted(file.name for file in tmp_path.iterdir())
    with pytest.raises(RuntimeError, match="rank lost"):
        export_model(tmp_path / "exported", source.model, failing())
    assert sorted(file.name for file in tmp_path.iterdir()) == before


def written_by_two(source, folder, split, overlap=0):
    """Parts of two writers, the first of which has `split` tensors, the second all from `split - overlap` on."""
    folder.mkdir()
    items = list(source.tensors.items())
    for writer, share in ((1, items[split - overlap :]), (0, items[:split])):
        write_parts(folder, source.model, share, max_shard_bytes=600, writer=writer)


def test_several_writers_make_one_folder(source, toy, tmp_path):
    written_by_two(source, tmp_path / "parts", 3)
    finish_export(tmp_path / "parts", source.model)
    export_model(tmp_path / "alone", source.model, source.tensors.items(), max_shard_bytes=600)
    assert inspect_model(tmp_path / "parts", {"toy": toy}).hf_config["dtype"] == "float32"
    totals = [
        json.loads((tmp_path / name / "model.safetensors.index.json").read_text())["metadata"]
        for name in ("parts", "alone")
    ]
    assert totals[0] == totals[1]
    for name, tensor in SafetensorsFolder(tmp_path / "parts").load(source.tensors):
        assert torch.equal(tensor, source.tensors[name])
    assert not list((tmp_path / "parts").glob("part-*"))


def test_several_writers_must_write_each_tensor_once(source, tmp_path):
    written_by_two(source, tmp_path / "twice", 3, overlap=1)
    with pytest.raises(ModelError, match="is exported twice"):
        finish_export(tmp_path / "twice", source.model)
    (tmp_path / "less").mkdir()
    write_parts(tmp_path / "less", source.model, list(source.tensors.items())[:-2], max_shard_bytes=600, writer=1)
    with pytest.raises(ModelError, match="2 tensors are missing"):
        finish_export(tmp_path / "less", source.model)
