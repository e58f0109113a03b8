"""A run that cannot go on, or cannot be replayed: one line, exit status 2, nothing started, nothing changed."""

import json
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from vime_core.cli.app import main
from vime_core.config.compose import compose
from vime_core.loop.inputs import prepare
from vime_core.models.fingerprint import model_fingerprint
from vime_core.randomness import random_state
from vime_core.run.resume import open_run


@pytest.fixture
def settings(world, tmp_path):
    """A run on a model and data of its own."""
    model = shutil.copytree(world.model, tmp_path / "model")
    data = shutil.copy(world.data, tmp_path / "train.jsonl")
    return [
        "hardware=cpu",
        f"model.path={model}",
        f"data.train={data}",
        f"run.root={tmp_path}/out",
        "rollout.prompts_per_step=6",
        "rollout.samples_per_prompt=4",
        "rollout.max_prompt_tokens=512",
        "rollout.max_response_tokens=12",
    ]


@pytest.fixture
def run_folder(settings, tmp_path):
    """A run with a checkpoint after step 2, and metrics of step 3."""
    composed = compose([*settings, "resume.mode=auto", f"resume.run={tmp_path}/run"])
    inputs = prepare(composed)
    opened = open_run(inputs.config, composed.tree, model_fingerprint(inputs.model.path), inputs.check_state)
    inputs.source.take(12)
    trainer = opened.checkpoints.begin(2) / "trainer"
    trainer.mkdir()
    (trainer / "weights").write_bytes(bytes(1000))
    state = {"step": 2, "policy_version": 2, "updates": 2, "data": inputs.source.state(), "random": random_state()}
    opened.checkpoints.commit(2, state)
    opened.folder.metrics_file.write_text("".join(json.dumps({"step": step}) + "\n" for step in (1, 2, 3)))
    opened.folder.unlock()
    return opened.folder.path


@pytest.fixture
def refused(settings, tmp_path, capsys, monkeypatch):
    """Runs `vime train` in this process and returns the line it was refused with."""
    monkeypatch.setattr("vime_core.loop.train.started", lambda *_: pytest.fail("a process was started"))

    def run(*overrides):
        before = contents(tmp_path)
        status = main(["train", *settings, *overrides])
        told = capsys.readouterr().err.strip()
        assert status == 2, told
        assert len(told.splitlines()) == 1
        assert told.startswith("error: ")
        validated = main(["config", "--validate", *settings, *overrides])
        if "is in use by" not in told:
            assert (validated, capsys.readouterr().err.strip()) == (2, told)
        assert contents(tmp_path) == before
        return told

    return run


def contents(folder):
    """What is in a folder; what locks it aside."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != ".lock"}


@pytest.fixture
def not_resumed(refused, run_folder):
    return lambda *overrides: refused("resume.mode=auto", f"resume.run={run_folder}", *overrides)


def test_another_batch_size(not_resumed):
    told = not_resumed("rollout.prompts_per_step=12", "algorithm.updates_per_rollout=2")
    assert "rollout.prompts_per_step (was 6, now 12)" in told
    assert "algorithm.updates_per_rollout (was 1, now 2)" in told


def test_another_data_file(not_resumed, world):
    told = not_resumed(f"data.train={world.long_data}")
    assert f"now {json.dumps(str(world.long_data))}" in told


def test_rows_were_added_to_the_data(not_resumed, tmp_path):
    file = tmp_path / "train.jsonl"
    lines = file.read_text().splitlines()
    file.write_text("\n".join([*lines, lines[0].replace("sum up", "add up")]) + "\n")
    assert "prompts 24 -> 25" in not_resumed()


def test_a_label_was_changed(not_resumed, tmp_path):
    file = tmp_path / "train.jsonl"
    file.write_text(file.read_text().replace('"1"', '"2"', 1))
    assert "fingerprint" in not_resumed()


def test_other_weights(not_resumed, tmp_path):
    file = tmp_path / "model" / "model.safetensors"
    save_file({name: tensor * 1.01 for name, tensor in load_file(file).items()}, file, metadata={"format": "pt"})
    assert "model.safetensors; restore it or start a new run" in not_resumed()


def test_another_setting_of_the_model(not_resumed, tmp_path):
    file = tmp_path / "model" / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "rms_norm_eps": 1e-5}))
    assert "config.json; restore it or start a new run" in not_resumed()


def test_checkpoint_with_a_file_missing(not_resumed, run_folder):
    (run_folder / "checkpoints" / "step_000002" / "trainer" / "weights").unlink()
    assert "step_000002 is damaged: trainer/weights is missing" in not_resumed()


def test_checkpoint_that_is_cut_short(not_resumed, run_folder):
    (run_folder / "checkpoints" / "step_000002" / "trainer" / "weights").write_bytes(bytes(999))
    assert "trainer/weights holds 999 bytes instead of 1000" in not_resumed()


def test_checkpoint_with_a_flipped_bit(not_resumed, run_folder):
    (run_folder / "checkpoints" / "step_000002" / "trainer" / "weights").write_bytes(bytes(999) + b"\1")
    assert "trainer/weights has another checksum" in not_resumed()


def test_run_folder_of_another_format(not_resumed, run_folder):
    (run_folder / "run.json").write_text(json.dumps({"format": 2, "vime_version": "3.0.0"}))
    assert "use the version that wrote it, 3.0.0" in not_resumed()


def test_checkpoint_of_another_format(not_resumed, run_folder):
    file = run_folder / "checkpoints" / "step_000002" / "state.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "format": 2, "vime_version": "3.0.0"}))
    assert "continue with the version that wrote it, 3.0.0" in not_resumed()


# replay


@pytest.fixture
def not_replayed(refused, recording):
    return lambda *overrides: refused("rollout=replay", f"rollout.path={recording}", "train.steps=30", *overrides)


def test_no_recorded_run(not_replayed):
    assert "/no/run is no run folder" in not_replayed("rollout.path=/no/run")


def test_more_steps_than_were_recorded(not_replayed):
    assert "set train.steps=30" in not_replayed("train.steps=31")


def test_run_without_rollouts(not_replayed, run_folder):
    assert "holds no rollouts of step 1" in not_replayed(f"rollout.path={run_folder}")


def test_other_settings_than_were_recorded(not_replayed):
    told = not_replayed("rollout.temperature=0.7", "rollout.samples_per_prompt=8")
    assert "recorded with other settings; set rollout.samples_per_prompt=4 rollout.temperature=1.0" in told


def test_evaluation_without_engines(not_replayed, world):
    told = not_replayed("eval.every=2", f"+evals.a.path={world.data}")
    assert "eval.every=2 (command line) needs engines, and rollout=replay has none" in told


def test_neither_training_nor_generating(not_replayed):
    assert "train=none trains nothing and rollout=replay generates nothing" in not_replayed("train=none")


def test_pushing_weights_to_nobody(not_replayed):
    assert "pushes into engines, and rollout backend replay has none" in not_replayed("sync=shm")


def test_pushing_nothing_to_engines(refused):
    assert "pushes nothing, and rollout backend vllm has engines" in refused("sync=none")


def test_settings_of_engines(not_replayed):
    assert "unknown key rollout.max_num_seqs" in not_replayed("rollout.max_num_seqs=4")


def test_replaying_a_run_into_itself(not_replayed, recording):
    told = not_replayed("resume.mode=auto", f"resume.run={Path(recording).parent}/run/../run")
    assert "is the run that is replayed: give another folder" in told
