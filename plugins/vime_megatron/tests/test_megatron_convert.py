"""`vime convert`: model folders to Megatron's checkpoints and back, in processes of their own."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
import torch
from safetensors.torch import save_file

from vime_core.cli import main
from vime_core.data.batching import build_update
from vime_core.loop.convert import MAX_SHARD_BYTES
from vime_core.models.stacked import open_weights
from vime_core.models.tensors import tensor_shapes
from vime_grpo.config import GRPOConfig
from vime_grpo.grpo import GRPO
from vime_qwen3.qwen3 import Qwen3
from vime_qwen3.qwen3_moe import Qwen3Moe

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

DEADLINE_S = 240
MEASURED = """
import sys, threading
from pathlib import Path
import vime_megatron.convert, vime_core.cli.convert, safetensors.torch
from vime_core.cli import main
from vime_core.loop import convert

convert.MAX_SHARD_BYTES = int(sys.argv.pop(1))

def anonymous():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon"))

before, peak, done = anonymous(), 0, threading.Event()

def watch():
    global peak
    while not done.wait(0.002):
        peak = max(peak, anonymous())

watcher = threading.Thread(target=watch)
watcher.start()
status = main(sys.argv[1:])
done.set()
watcher.join()
print(peak - before)
sys.exit(status)
"""
"""`vime convert` with files of a given size; prints the most anonymous bytes above what the imports take."""

SMALL_EXPERTS = {
    "hidden_size": 512,
    "intermediate_size": 2048,
    "num_hidden_layers": 6,
    "vocab_size": 4000,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "num_experts": 16,
    "moe_intermediate_size": 704,
    "mlp_only_layers": [],
}
EXPERTS = SMALL_EXPERTS | {
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 20,
    "vocab_size": 20_000,
    "num_attention_heads": 16,
}
DENSE = {
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "vocab_size": 151_936,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
}
"""Qwen3-0.6B with an output matrix of its own."""


def convert(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "vime_core.cli", "convert", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)


def tensors_of(folder: Path, model: Any) -> dict[str, torch.Tensor]:
    files = open_weights(folder, model.geometry, model.tensor_map)
    return dict(files.load(tensor_shapes(model.geometry, model.tensor_map)))


@pytest.fixture(params=["moe", pytest.param("dense, tied", marks=pytest.mark.full)])
def source(request: pytest.FixtureRequest, make_model: Callable[..., Any], tmp_path: Path) -> Any:
    changes = {"tie_word_embeddings": True, "vocab_size": 131} if request.param != "moe" else {"family": "qwen3_moe"}
    model = make_model(**changes)
    folder = tmp_path / "model"
    shutil.copytree(model.path, folder)
    (folder / "tokenizer.json").write_text("{}")
    return type(model)(folder, model.geometry, model.tensor_map)


def test_there_and_back_is_bit_equal(source: Any, tmp_path: Path) -> None:
    checkpoint, back = tmp_path / "new" / "checkpoint", tmp_path / "back"
    there = convert(source.path, checkpoint)
    assert (there.returncode, there.stdout) == (0, f"{checkpoint}\n"), there.stderr
    assert {file.name for file in checkpoint.iterdir()} >= {"metadata.json", ".metadata", "common.pt"}
    assert [folder.name for folder in checkpoint.parent.iterdir()] == ["checkpoint"]
    returned = convert(checkpoint, back, "--model", source.path)
    assert returned.returncode == 0, returned.stderr
    expected, found = tensors_of(source.path, source), tensors_of(back, source)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())
    assert (back / "tokenizer.json").exists()
    again = convert(source.path, checkpoint)
    assert again.returncode == 2
    assert f"{checkpoint} exists" in again.stderr


def test_a_trainer_reads_what_was_converted(model: Any, start: Callable[..., Any], tmp_path: Path) -> None:
    """The file names of a parameter are those of a trainer's checkpoint."""
    from vime_megatron import mcore

    folder = tmp_path / "model"
    shutil.copytree(model.path, folder)
    (folder / "tokenizer.json").write_text("{}")
    assert convert(folder, tmp_path / "checkpoint").returncode == 0
    policy = start(model)._passes._policy
    expected = {name: tensor.detach().clone() for name, tensor in policy.named_parameters()}
    for tensor in policy.parameters():
        torch.nn.init.zeros_(tensor)
    loaded = mcore.dist_checkpointing.load(policy.sharded_state_dict(), str(tmp_path / "checkpoint"))
    policy.load_state_dict(loaded)
    assert all(torch.equal(tensor, expected[name]) for name, tensor in policy.named_parameters())


LAYOUTS: dict[str, tuple[dict[str, Any], dict[str, int]]] = {
    "dense TP2+SP": ({"vocab_size": 131}, {"tensor_parallel": 2}),
    "dense PP2 tied": ({"vocab_size": 131, "tie_word_embeddings": True}, {"pipeline_parallel": 2}),
    "moe TP2xEP2": ({"family": "qwen3_moe", "vocab_size": 131}, {"tensor_parallel": 2, "expert_parallel": 2}),
}


@pytest.mark.full
@pytest.mark.ranks
@pytest.mark.timeout(300)
def test_what_several_ranks_wrote_is_read(
    make_model: Callable[..., Any],
    make_context: Callable[..., Any],
    samples: list[Any],
    ranks_program: Any,
    tmp_path: Path,
) -> None:
    """Trained float32 weights of two ranks, bit for bit; padding of the vocabulary is left out, as is the optimizer."""
    algorithm = GRPO(GRPOConfig())
    job: dict[str, Any] = {}
    (batch,) = build_update(samples, algorithm, max_tokens=24, ranks=1) or []
    for name, (changes, settings) in LAYOUTS.items():
        calls = [("update", batch, algorithm), ("save", tmp_path / name), ("weights",)]
        job[name] = [(make_context(make_model(**changes), world_size=2, **settings), calls)]
    saved = ranks_program.run_ranks(tmp_path, job, 2, deadline_s=DEADLINE_S)[0]
    for name, (changes, _) in LAYOUTS.items():
        model, output = make_model(**changes), tmp_path / f"{name} back"
        done = convert(tmp_path / name / "model", output, "--model", complete(model, tmp_path / f"{name} base"))
        assert done.returncode == 0, done.stderr
        found, ((*_, expected),) = tensors_of(output, model), saved[name]
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[key], tensor) for key, tensor in expected.items()), name
    smaller = complete(make_model(vocab_size=128), tmp_path / "smaller")
    done = convert(tmp_path / "dense TP2+SP" / "model", tmp_path / "x", "--model", smaller)
    assert done.returncode == 2
    assert "has values in rows 128 to 132, beyond the vocabulary" in done.stderr
    assert done.stderr.count("\n") == 1


def complete(model: Any, folder: Path) -> Path:
    """A copy of a model's folder, with the tokenizer that a model folder must have."""
    shutil.copytree(model.path, folder)
    (folder / "tokenizer.json").write_text("{}")
    return folder


def test_a_checkpoint_keeps_its_dtype(model: Any, start: Callable[..., Any], tmp_path: Path) -> None:
    """Whatever that of the model folder is."""
    start(model, dtype="bfloat16").save(tmp_path / "saved")
    shutil.copytree(model.path, tmp_path / "model")
    (tmp_path / "model" / "tokenizer.json").write_text("{}")
    done = convert(tmp_path / "saved" / "model", tmp_path / "back", "--model", tmp_path / "model")
    assert done.returncode == 0, done.stderr
    expected, found = tensors_of(model.path, model), tensors_of(tmp_path / "back", model)
    assert all(torch.equal(found[name], tensor.bfloat16()) for name, tensor in expected.items())
    assert json.loads((tmp_path / "back" / "config.json").read_text())["dtype"] == "bfloat16"


def test_what_is_wrong_is_told_before_anything_is_written(
    model: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(model.path, tmp_path / "model")
    (tmp_path / "model" / "tokenizer.json").write_text("{}")
    (tmp_path / "empty").mkdir()
    for arguments, told in (
        (["nowhere", "x"], "is not a folder"),
        (["nowhere", "x", "--model", "model"], "is not a folder"),
        (["empty", "x"], "has no config.json, so it is no model folder; if it is a checkpoint, give --model FOLDER"),
        (["model", "empty"], "empty exists"),
        (["model", "x", "--train", "none"], "has no checkpoints to convert; these have: megatron"),
    ):
        paths = [
            argument if argument in ("--model", "--train", "none") else str(tmp_path / argument)
            for argument in arguments
        ]
        assert main(["convert", *paths]) == 2
        errors = capsys.readouterr().err
        assert told in errors
        assert errors.count("\n") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "model"]


def test_a_full_disk_is_told_in_one_line(model: Any, start: Callable[..., Any], tmp_path: Path) -> None:
    start(model).save(tmp_path / "saved")
    shutil.copytree(model.path, tmp_path / "model")
    (tmp_path / "model" / "tokenizer.json").write_text("{}")
    for arguments in (["model"], ["saved/model", "--model", str(tmp_path / "model")]):
        source, *model_option = arguments
        limited = f"ulimit -f 100; exec {sys.executable} -m vime_core.cli convert {tmp_path / source} {tmp_path / 'x'}"
        command = ["bash", "-c", " ".join([limited, *model_option])]
        done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
        assert done.returncode == 2, done.stderr
        assert "cannot write" in done.stderr
        assert "MiB are free there); make room" in done.stderr
        assert done.stderr.count("\n") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "saved"]


@pytest.mark.full
def test_a_checkpoint_that_cannot_be_read_is_told_in_one_line(make_model: Callable[..., Any], tmp_path: Path) -> None:
    for name, changes in (("small", {}), ("large", {"num_hidden_layers": 3})):
        shutil.copytree(make_model(**changes).path, tmp_path / name)
        (tmp_path / name / "tokenizer.json").write_text("{}")
    assert convert(tmp_path / "small", tmp_path / "checkpoint").returncode == 0
    (tmp_path / "empty").mkdir()
    shutil.copytree(tmp_path / "checkpoint", tmp_path / "cut")
    (data,) = (tmp_path / "cut").glob("*.distcp")
    data.write_bytes(data.read_bytes()[: data.stat().st_size // 2])
    for checkpoint, model in (("empty", "small"), ("checkpoint", "large"), ("cut", "small")):
        done = convert(tmp_path / checkpoint, tmp_path / "x", "--model", tmp_path / model)
        assert done.returncode == 2, done.stderr
        assert "is damaged, no checkpoint of Megatron, or of another model" in done.stderr
        assert done.stderr.count("\n") == 1
        assert not (tmp_path / "x").exists()


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("family", "shape", "bucket", "least"),
    [
        pytest.param(Qwen3Moe(), SMALL_EXPERTS, 8 << 20, 200e6, id="small, experts"),
        pytest.param(Qwen3Moe(), EXPERTS, MAX_SHARD_BYTES, 1.45e9, id="experts", marks=pytest.mark.full),
        pytest.param(Qwen3(), DENSE, MAX_SHARD_BYTES, 1.45e9, id="dense", marks=pytest.mark.full),
    ],
)
def test_the_whole_model_is_never_in_memory(
    family: Any, shape: dict[str, Any], bucket: int, least: float, tmp_path: Path
) -> None:
    """There and back, bit for bit, in less memory than three buckets and the largest tensor."""
    source, checkpoint, back = tmp_path / "model", tmp_path / "checkpoint", tmp_path / "back"
    config = {**family.tiny(), **shape}
    total, largest = write_random(source, family, config)
    assert total > least
    for arguments in ((source, checkpoint), (checkpoint, back, "--model", source)):
        command = [sys.executable, "-c", MEASURED, str(bucket), "convert", *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
        assert done.returncode == 0, done.stderr
        used = int(done.stdout.split()[-1])
        print(f"{total >> 20} MiB, largest tensor {largest >> 20} MiB, {arguments[1].name}: {used >> 20} MiB")
        assert used < 3 * bucket + largest
    geometry = family.geometry(config, None)
    expected, found = (open_weights(folder, geometry, family.tensor_map(geometry)) for folder in (source, back))
    assert expected.tensors.keys() == found.tensors.keys()
    for (name, tensor), (_, returned) in zip(
        expected.load(expected.tensors), found.load(expected.tensors), strict=True
    ):
        assert torch.equal(tensor, returned), name


def write_random(folder: Path, family: Any, config: dict[str, Any]) -> tuple[int, int]:
    """A model folder with random weights; the bytes of all tensors, and of the largest."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text("{}")
    geometry = family.geometry(config, None)
    shapes = tensor_shapes(geometry, family.tensor_map(geometry))
    weights = {name: torch.randn(size, dtype=torch.bfloat16) for name, size in shapes.items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    sizes = [tensor.nbytes for tensor in weights.values()]
    return sum(sizes), max(sizes)
