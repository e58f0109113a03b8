import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from vime_core.config.schema import RunConfig
from vime_core.errors import ConfigError, RunFolderError
from vime_core.run.folder import RunFolder
from vime_core.run.metrics import MetricsWriter, read_metrics

HOLD = """
import sys
from pathlib import Path
from vime_core.run.folder import RunFolder

folder = RunFolder.open(Path(sys.argv[1]))
folder.lock()
print("locked", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def folder(tmp_path):
    folder = RunFolder.create(RunConfig(name="trial", root=str(tmp_path)))
    folder.write_config({"run": {"seed": 0}})
    return folder


def test_layout(folder, tmp_path):
    assert re.fullmatch(r"\d{4}-\d\d-\d\d/\d\d-\d\d-\d\d_trial", str(folder.path.relative_to(tmp_path)))
    assert all(path.is_dir() for path in (folder.logs, folder.rollouts, folder.checkpoints))
    assert folder.rollout_file(12) == folder.path / "rollouts" / "step_000012.parquet"


def test_folders_made_at_once_are_different(tmp_path):
    config = RunConfig(root=str(tmp_path))
    with ThreadPoolExecutor(16) as threads:
        folders = list(threads.map(lambda _: RunFolder.create(config).path, range(48)))
    assert len(set(folders)) == 48
    assert all(path.is_dir() for path in folders)


@pytest.mark.parametrize("name", ["", "a/b", "../a", "a b", "a\n"])
def test_a_name_that_is_no_folder_name(name, tmp_path):
    with pytest.raises(ConfigError, match=r"run\.name='.*' may hold only letters"):
        RunFolder.create(RunConfig(name=name, root=str(tmp_path)))


def test_a_root_that_is_a_file(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(RunFolderError, match=r"cannot make the run folder .*: .*; set run\.root to a writable folder"):
        RunFolder.create(RunConfig(root=str(tmp_path / "file")))


def test_a_root_that_holds_no_new_folders_is_found_without_one(tmp_path):
    for root in ("/proc/x", "/proc"):
        with pytest.raises(RunFolderError, match="/proc cannot be written to: choose a writable folder"):
            RunFolder.check_new(RunConfig(root=root))
    RunFolder.check_new(RunConfig(root=str(tmp_path / "new" / "root")))
    assert not list(tmp_path.iterdir())


def test_config_round_trip(folder):
    tree = {
        "train": {"lr": 1e-06, "steps": 100, "threads": None, "clip": 1.0},
        "text": "yes: 'no' ${not.resolved} 算术",
        "list": [1, "2", {"a": True}],
        "empty": {"list": [], "dict": {}},
    }
    folder.write_config(tree)
    read = RunFolder.open(folder.path).read_config()
    assert read == tree
    assert isinstance(read["train"]["lr"], float)


@pytest.mark.parametrize("text", ["a: [", "- 1\n- 2", "\x00"])
def test_a_broken_config_is_named(folder, text):
    folder.config_file.write_text(text)
    with pytest.raises(RunFolderError, match=r"cannot read .*config\.yaml: "):
        folder.read_config()


def test_open_names_what_is_missing(tmp_path):
    with pytest.raises(RunFolderError, match=r"there is no run folder .*nowhere: check resume\.run"):
        RunFolder.open(tmp_path / "nowhere")
    with pytest.raises(RunFolderError, match=r"is no run folder: it has no config\.yaml"):
        RunFolder.open(tmp_path)


def test_blank_folders(tmp_path):
    assert RunFolder(tmp_path).is_blank()
    folder = RunFolder.create_at(tmp_path)
    folder.lock()
    folder.unlock()
    assert folder.is_blank()
    (folder.logs / "engine.log").touch()
    assert not folder.is_blank()
    assert not RunFolder(tmp_path / "missing").is_blank()


def test_only_one_process_writes(folder):
    command = [sys.executable, "-c", HOLD, str(folder.path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "locked\n"
        with pytest.raises(RunFolderError, match=rf"is in use by process {other.pid} on \S+: wait for it to end"):
            folder.lock()
        other.kill()
    folder.lock()
    assert f"process {os.getpid()} " in (folder.path / ".lock").read_text()
    folder.unlock()
    folder.unlock()


def test_cut_after_a_step(folder):
    writer = MetricsWriter(folder.metrics_file)
    for step in range(4):
        writer.write(step, {"a": step})
        folder.write_rollouts(step, [], {})
    writer.close()
    (folder.rollouts / ".step_000001.parquet.partial").touch()
    (folder.rollouts / "notes.txt").touch()
    folder.cut_after(1)
    assert [record["step"] for record in read_metrics(folder.metrics_file)] == [0, 1]
    kept = {path.name for path in folder.rollouts.iterdir()}
    assert kept == {"step_000000.parquet", "step_000001.parquet", "notes.txt"}
    folder.cut_after(-1)
    assert read_metrics(folder.metrics_file) == []
    assert [path.name for path in folder.rollouts.iterdir()] == ["notes.txt"]
