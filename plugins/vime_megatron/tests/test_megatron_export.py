"""`vime export` of checkpoints that this backend wrote."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
import torch

from vime_core.cli import main
from vime_core.config.compose import compose
from vime_core.data.batching import build_update
from vime_core.models.checkpoint import SafetensorsFolder
from vime_core.run.checkpoint import CheckpointStore
from vime_core.run.folder import RunFolder
from vime_core.run.resume import config_fingerprint
from vime_grpo.config import GRPOConfig
from vime_grpo.grpo import GRPO

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

DEADLINE_S = 240
STEP = 3


@pytest.fixture(scope="module")
def model_folder(model: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model with files that are copied along."""
    folder = tmp_path_factory.mktemp("base") / "it's a model"
    shutil.copytree(model.path, folder)
    (folder / "tokenizer.json").write_text('{"a": 1}')
    return folder


def make_run(path: Path, model_folder: Path, **settings: Any) -> RunFolder:
    """A run folder without checkpoints."""
    overrides = [f"++{key}={json.dumps(value)}" for key, value in settings.items()]
    composed = compose(["accelerator=cpu", "data.train=/none", "model.path=/none", *overrides], require_available=False)
    run = RunFolder.create_at(path)
    tree = composed.tree
    tree["model"]["path"] = str(model_folder)
    run.write_config(tree)
    return run


def commit(run: RunFolder, save: Callable[[Path], Any]) -> None:
    store = CheckpointStore(run.checkpoints, 2, config_fingerprint(run.read_config()))
    save(store.begin(STEP) / "trainer")
    store.commit(STEP, {"step": STEP})


def export(*arguments: str) -> str:
    """What the command prints, in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "vime_core.cli", "export", *arguments],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


def assert_holds(folder: Path, weights: dict[str, torch.Tensor], base: Path) -> None:
    """The folder is complete, and what transformers loads from it are these weights."""
    from transformers import Qwen3ForCausalLM

    assert {file.stat().st_mode & 0o444 for file in folder.iterdir()} == {0o444}
    stored = SafetensorsFolder(folder)
    found = dict(stored.load(stored.tensors))
    assert found.keys() == weights.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in weights.items())
    config = json.loads((folder / "config.json").read_text())
    assert config["torch_dtype" if "torch_dtype" in config else "dtype"] == str(next(iter(found.values())).dtype)[6:]
    assert (folder / "tokenizer.json").read_bytes() == (base / "tokenizer.json").read_bytes()
    loaded = Qwen3ForCausalLM.from_pretrained(folder, dtype="auto").state_dict()
    assert all(torch.equal(loaded[name], tensor) for name, tensor in weights.items())


def test_one_rank(
    model_folder: Path, model: Any, start: Callable[..., Any], samples: list[Any], batch_of: Any, tmp_path: Path
) -> None:
    run = make_run(tmp_path / "run", model_folder, **{"train.dtype": "bfloat16"})
    backend, algorithm = start(model, dtype="bfloat16"), GRPO(GRPOConfig())
    before = {name: tensor.clone() for name, tensor in backend.weights()}
    backend.update(batch_of(samples, algorithm), algorithm)
    commit(run, backend.save)
    weights = {name: tensor.clone() for name, tensor in backend.weights()}
    assert any(not torch.equal(before[name], tensor) for name, tensor in weights.items())

    output = run.path / "export" / "step_000003"
    assert export(str(run.path)) == f"{output}\n"
    assert_holds(output, weights, model_folder)


@pytest.mark.ranks
def test_two_ranks_that_share_the_model_out(
    model_folder: Path,
    model: Any,
    make_context: Callable[..., Any],
    samples: list[Any],
    tmp_path: Path,
    ranks_program: Any,
) -> None:
    layout = {"world_size": 2, "tensor_parallel": 2}
    settings = {f"train.{key}": value for key, value in layout.items()}
    run = make_run(tmp_path / "run", tmp_path / "gone", **settings, **{"train.dtype": "float32"})
    saved: dict[str, torch.Tensor] = {}

    def save(folder: Path) -> None:
        """Make an update and save."""
        algorithm = GRPO(GRPOConfig())
        (batch,) = build_update(samples, algorithm, max_tokens=24, ranks=1) or []
        calls = [("update", batch, algorithm), ("save", folder), ("weights",)]
        job = {"save": [(make_context(model, **layout), calls)]}
        saved.update(ranks_program.run_ranks(tmp_path, job, 2, deadline_s=DEADLINE_S)[0]["save"][0][2])

    commit(run, save)
    output = tmp_path / "new" / "exported"
    arguments = ["--step", str(STEP), "--output", str(output), "--model", str(model_folder), "--accelerator", "cpu"]
    assert export(str(run.path), *arguments) == f"{output}\n"
    assert_holds(output, saved, model_folder)


# What is wrong is told before anything starts.


@pytest.fixture(scope="module")
def small_run(model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A run whose checkpoint holds no trainer."""
    run = make_run(tmp_path_factory.mktemp("small") / "run", model_folder)
    commit(run, lambda folder: folder.mkdir())
    return run


@pytest.fixture(autouse=True)
def nothing_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process."""

    def start(export: Any) -> None:
        raise AssertionError("an export was started")

    monkeypatch.setattr("vime_core.cli.export.run_export", start)


def refusal(capsys: pytest.CaptureFixture[str], *arguments: Any) -> str:
    assert main(["export", *map(str, arguments)]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    [line] = output.err.splitlines()
    return line


def test_what_is_not_there(small_run: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert f"{tmp_path} is no run folder: it has no config.yaml" in refusal(capsys, tmp_path)
    assert f"{small_run.path} holds no checkpoint of step 7; there are: 3" in refusal(
        capsys, small_run.path, "--step", 7
    )
    (tmp_path / "config.yaml").write_text("{}")
    assert f"{tmp_path} holds no checkpoint; a run saves one at its end" in refusal(capsys, tmp_path)


def test_nothing_is_overwritten(small_run: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = refusal(capsys, small_run.path, "--output", tmp_path)
    assert line == f"error: {tmp_path} exists: give a new folder with --output, or remove it first"


def test_a_model_folder_that_has_moved(
    small_run: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = refusal(capsys, small_run.path, "--model", tmp_path / "no")
    assert line.startswith(f"error: model.path {tmp_path / 'no'} is not a folder")


def test_an_accelerator_that_is_not_there(small_run: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    assert "unknown accelerator 'nosuch'" in refusal(capsys, small_run.path, "--accelerator", "nosuch")
    if not torch.cuda.is_available():
        assert "accelerator 'cuda' of plugin core" in refusal(capsys, small_run.path, "--accelerator", "cuda")


def test_a_place_that_holds_no_folders(small_run: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    assert "/proc cannot be written to" in refusal(capsys, small_run.path, "--output", "/proc/x")


def test_a_full_disk(small_run: RunFolder, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda folder: type("", (), {"free": 1 << 10}))
    line = refusal(capsys, small_run.path)
    assert f"{small_run.path} has 0 MiB free and the weights need" in line


def test_a_checkpoint_that_is_damaged_or_of_another_configuration(
    model_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run(tmp_path / "run", model_folder)
    commit(run, lambda folder: [folder.mkdir(), (folder / "weights").write_text("12345")])
    tree = run.read_config()
    run.write_config({**tree, "run": {**tree["run"], "seed": 5}})
    assert "config.yaml is not the configuration of step_000003: it was changed by hand" in refusal(capsys, run.path)
    run.write_config(tree)
    (run.checkpoints / "step_000003" / "trainer" / "weights").write_text("1234")
    assert "is damaged: trainer/weights holds 4 bytes instead of 5" in refusal(capsys, run.path)
