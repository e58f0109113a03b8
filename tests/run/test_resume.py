import json
import subprocess
import sys
from copy import deepcopy
from pathlib import Path

import pytest

from vime_core.config.schema import CheckpointConfig, Config, ModelConfig, ResumeConfig, RunConfig
from vime_core.errors import ConfigError, RunFolderError
from vime_core.run.metrics import MetricsWriter, read_metrics
from vime_core.run.resume import check_same, config_fingerprint, open_run

TREE = {
    "placement": "colocated",
    "model": {"name": "auto", "path": "/models/tiny"},
    "data": {"name": "files", "train": "a.parquet", "shuffle": True},
    "algorithm": {"name": "grpo", "updates_per_rollout": 1, "clip_ratio_low": 0.2},
    "train": {"name": "megatron", "steps": 100, "lr": 1e-6, "lr_schedule": "constant", "world_size": 1},
    "rollout": {"prompts_per_step": 32, "samples_per_prompt": 8, "num_engines": 2},
    "run": {"name": "run", "seed": 0},
    "checkpoint": {"every": 10},
}


MODEL = {"config.json": "c0", "model.safetensors": "d1"}


def changed(*path_and_value):
    *path, key, value = path_and_value
    tree = deepcopy(TREE)
    node = tree
    for part in path:
        node = node[part]
    node[key] = value
    return tree


@pytest.fixture
def opened(tmp_path):
    """Open a run as the command line would, and let go of it at the end."""
    folders = []

    def open_it(mode="never", run=None, tree=TREE, model=MODEL, check_state=lambda state: None):
        config = Config(
            model=ModelConfig(path=tree["model"]["path"]),
            run=RunConfig(root=str(tmp_path / "outputs")),
            resume=ResumeConfig(mode=mode, run=run and str(run)),
            checkpoint=CheckpointConfig(keep_last=2),
        )
        run = open_run(config, tree, model, check_state)
        folders.append(run.folder)
        return run

    yield open_it
    for folder in folders:
        folder.unlock()


@pytest.fixture
def trained(opened):
    """A run with a checkpoint after step 2 that went on to step 4."""
    run = opened()
    writer = MetricsWriter(run.folder.metrics_file)
    for step in range(1, 5):
        writer.write(step, {})
        run.folder.write_rollouts(step, [], {})
        if step == 2:
            save(run, step)
    writer.close()
    run.folder.unlock()
    return run.folder


def save(run, step):
    (run.checkpoints.begin(step) / "weights").write_bytes(b"w")
    run.checkpoints.commit(step, {"step": step})


def steps_on_disk(folder):
    return [record["step"] for record in read_metrics(folder.metrics_file)], sorted(
        int(path.stem[5:]) for path in folder.rollouts.iterdir()
    )


def test_never_makes_a_new_run(opened, trained):
    run = opened("never", trained.path)
    assert run.folder.path != trained.path
    assert run.checkpoint is None
    assert run.folder.read_config() == TREE


@pytest.mark.parametrize("mode", ["must", "auto"])
def test_go_on_from_the_checkpoint(opened, trained, mode):
    longer = changed("train", "steps", 200)
    run = opened(mode, trained.path, longer)
    assert run.folder.path == trained.path
    assert (run.checkpoint.step, run.checkpoint.state) == (2, {"step": 2})
    assert steps_on_disk(run.folder) == ([1, 2], [1, 2])
    assert run.folder.read_config() == longer


def test_must_needs_a_run(opened):
    with pytest.raises(ConfigError, match=r"give its folder with resume\.run=<folder>"):
        opened("must")


def test_must_needs_a_folder(opened, tmp_path):
    with pytest.raises(RunFolderError, match=r"there is no run folder .*/nowhere: check resume\.run"):
        opened("must", tmp_path / "nowhere")
    assert not (tmp_path / "nowhere").exists()


def test_must_needs_a_checkpoint(opened):
    folder = opened().folder
    folder.unlock()
    with pytest.raises(RunFolderError, match=r"holds no checkpoint to continue from: start a new run, or"):
        opened("must", folder.path)


def test_auto_without_a_run_makes_one(opened, tmp_path):
    assert opened("auto").folder.path.parent.parent == tmp_path / "outputs"


@pytest.mark.parametrize("exists", [True, False])
def test_auto_starts_in_the_folder_that_is_given_so_that_it_can_be_repeated(opened, tmp_path, exists):
    path = tmp_path / "my" / "run"
    if exists:
        path.mkdir(parents=True)
    run = opened("auto", path)
    assert (run.folder.path, run.checkpoint) == (path, None)
    save(run, 3)
    run.folder.unlock()
    assert opened("auto", path).checkpoint.step == 3


def test_auto_starts_anew_where_the_run_died_before_its_first_checkpoint(opened, trained):
    for path in trained.checkpoints.glob("*/*"):
        path.unlink()
    for path in trained.checkpoints.iterdir():
        path.rmdir()
    run = opened("auto", trained.path)
    assert run.checkpoint is None
    assert steps_on_disk(run.folder) == ([], [])


def test_auto_does_not_take_over_a_folder_that_is_no_run(opened, tmp_path):
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis.tex").touch()
    with pytest.raises(RunFolderError, match=r"home is no run folder: it has no config\.yaml"):
        opened("auto", tmp_path / "home")
    assert [path.name for path in (tmp_path / "home").iterdir()] == ["thesis.tex"]


def test_a_damaged_checkpoint_stops_auto_too_and_changes_nothing(opened, trained):
    (trained.checkpoints / "step_000002" / "weights").unlink()
    with pytest.raises(RunFolderError, match="is damaged: weights is missing"):
        opened("auto", trained.path)
    assert steps_on_disk(trained) == ([1, 2, 3, 4], [1, 2, 3, 4])


@pytest.mark.parametrize(
    ("path", "told"),
    [
        (("data", "train", "b.parquet"), r'data\.train \(was "a\.parquet", now "b\.parquet"\)'),
        (("data", "seed", 3), r"data\.seed \(was null, now 3\)"),
        (("model", "path", "/models/other"), r'model\.path \(was "/models/tiny", now "/models/other"\)'),
        (("run", "seed", 1), r"run\.seed \(was 0, now 1\)"),
        (("rollout", "prompts_per_step", 16), r"rollout\.prompts_per_step \(was 32, now 16\)"),
        (("train", "lr_schedule", "cosine"), r'train\.lr_schedule \(was "constant", now "cosine"\)'),
        (("algorithm", "name", "gspo"), r'algorithm\.name \(was "grpo", now "gspo"\)'),
    ],
)
def test_what_must_not_change_is_listed_and_nothing_is_touched(opened, trained, path, told):
    with pytest.raises(RunFolderError, match=rf"cannot go on with other values of .*{told}.*: set them back or start"):
        opened("must", trained.path, changed(*path))
    assert steps_on_disk(trained) == ([1, 2, 3, 4], [1, 2, 3, 4])
    assert trained.read_config() == TREE


@pytest.mark.parametrize(
    "path",
    [
        ("train", "steps", 7),
        ("train", "lr", 2e-6),
        ("algorithm", "clip_ratio_low", 0.1),
        ("rollout", "num_engines", 1),
        ("run", "name", "other"),
        ("checkpoint", "every", 1),
    ],
)
def test_what_may_change(path):
    check_same(TREE, changed(*path), Path())
    assert config_fingerprint(TREE) == config_fingerprint(changed(*path))


def test_a_schedule_over_the_whole_run_fixes_its_length():
    cosine = changed("train", "lr_schedule", "cosine")
    longer = deepcopy(cosine)
    longer["train"]["steps"] = 200
    with pytest.raises(RunFolderError, match=r"train\.steps \(was 100, now 200\)"):
        check_same(cosine, longer, Path())


def test_all_differences_are_listed_in_one_line():
    other = changed("run", "seed", 1)
    other["data"]["train"] = "b"
    with pytest.raises(RunFolderError) as caught:
        check_same(TREE, other, Path("run"))
    assert str(caught.value) == (
        'run cannot go on with other values of data.train (was "a.parquet", now "b"), run.seed (was 0, now 1): '
        "set them back or start a new run"
    )


def test_a_config_changed_by_hand_is_noticed(opened, trained):
    other = changed("run", "seed", 1)
    trained.write_config(other)
    with pytest.raises(RunFolderError, match=r"config\.yaml is not the configuration of step_000002: it was changed"):
        opened("must", trained.path, other)


def test_a_run_that_is_still_going_is_left_alone(opened, trained):
    code = """
import sys
from pathlib import Path
from vime_core.run.folder import RunFolder
folder = RunFolder.open(Path(sys.argv[1]))
folder.lock()
print("locked", flush=True)
sys.stdin.read()
"""
    command = [sys.executable, "-c", code, str(trained.path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        other.stdout.readline()
        with pytest.raises(RunFolderError, match=f"is in use by process {other.pid}"):
            opened("auto", trained.path)
        other.stdin.close()
    assert steps_on_disk(trained) == ([1, 2, 3, 4], [1, 2, 3, 4])
    opened("auto", trained.path)


@pytest.mark.parametrize(
    ("model", "told"),
    [
        ({"config.json": "c0", "model.safetensors": "d2"}, r"model\.safetensors"),
        ({"config.json": "c0"}, r"model\.safetensors"),
        ({**MODEL, "generation_config.json": "e0"}, r"generation_config\.json"),
    ],
)
def test_a_model_folder_that_changed_is_named_and_nothing_is_touched(opened, trained, model, told):
    with pytest.raises(RunFolderError, match=rf"/models/tiny has changed since .* started: {told}; restore it or"):
        opened("auto", trained.path, model=model)
    assert steps_on_disk(trained) == ([1, 2, 3, 4], [1, 2, 3, 4])


@pytest.mark.parametrize("mode", ["must", "auto"])
def test_a_run_folder_of_another_format_names_the_version_that_wrote_it(opened, trained, mode):
    trained.origin_file.write_text(json.dumps({"format": 7, "vime_version": "9.1"}))
    with pytest.raises(RunFolderError, match=r"format 7, this vime \(.*\) reads format 1: use the version .*, 9\.1"):
        opened(mode, trained.path)
    assert steps_on_disk(trained) == ([1, 2, 3, 4], [1, 2, 3, 4])


@pytest.mark.parametrize("content", ["{", "[]"])
def test_a_torn_run_json_is_told(opened, trained, content):
    trained.origin_file.write_text(content)
    with pytest.raises(RunFolderError, match=r"run\.json cannot be read"):
        opened("auto", trained.path)


def test_a_checkpoint_without_a_run_json_is_not_trusted(opened, trained):
    trained.origin_file.unlink()
    with pytest.raises(RunFolderError, match=r"run\.json is missing"):
        opened("auto", trained.path)


def test_a_state_that_does_not_fit_touches_nothing(opened, trained):
    def refuse(state):
        raise RunFolderError(f"other data at step {state['step']}")

    with pytest.raises(RunFolderError, match="other data at step 2"):
        opened("must", trained.path, check_state=refuse)
    assert steps_on_disk(trained) == ([1, 2, 3, 4], [1, 2, 3, 4])
