import json
import math
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from vime_core.config.compose import compose
from vime_core.errors import ConfigError, PluginError
from vime_core.plugins.manager import load_plugins
from vime_core.run.folder import RunFolder
from vime_core.testing.components import OVERRIDES, install_components
from vime_core.testing.distributions import FakeSite

CONFIG = {"train": {"steps": 3}, "rewards": {"acme": {"weight": 1.0}}}
STEPS = {step: {"rollout/raw_reward": step / 4, "train/loss": -step / 8} for step in range(1, 4)}


@pytest.fixture
def run(tmp_path):
    folder = RunFolder.create_at(tmp_path / "run")
    folder.write_config(CONFIG)
    return folder


def tracker(name, run, **settings):
    registered = load_plugins().entries("tracker")[name]
    return registered.build(registered.entry.config(**settings), run.path)


def fill(tracker, steps):
    for step in steps:
        tracker.log(step, STEPS[step])
    tracker.close()
    tracker.close()


@pytest.mark.parametrize("name", ["tensorboard", "wandb"])
def test_without_its_package_a_tracker_says_so(name, tmp_path, monkeypatch):
    monkeypatch.setattr("vime_core.plugins.entries._is_installed", lambda module: module != name)
    assert load_plugins().entries("tracker")[name].unavailable() == f"module {name} is not installed"
    site = FakeSite(tmp_path)
    install_components(site)
    for _ in site.activate():
        with pytest.raises(PluginError, match=f"tracker '{name}' .* is unavailable: module {name} is not installed"):
            compose([*OVERRIDES, f"tracker=[{name}]"])


def test_trackers_are_chosen_by_name_and_configured(tmp_path):
    site = FakeSite(tmp_path)
    install_components(site)
    for _ in site.activate():
        composed = compose(
            [*OVERRIDES, "tracker=[tensorboard,wandb]", "trackers.wandb.project=p"], require_available=False
        )
        assert composed.tree["trackers"]["wandb"]["mode"] == "offline"
        assert composed.tree["trackers"]["wandb"]["project"] == "p"
        with pytest.raises(
            ConfigError, match=r"trackers\.wandb\.mode=never \(command line\): must be one of offline, online"
        ):
            compose([*OVERRIDES, "tracker=[wandb]", "trackers.wandb.mode=never"], require_available=False)


# TensorBoard


def scalars(run) -> dict[str, list[tuple[int, float]]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run.path / "tensorboard"), size_guidance={"scalars": 0})
    events.Reload()
    return {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def test_tensorboard_reads_what_was_written(run):
    pytest.importorskip("tensorboard")
    fill(tracker("tensorboard", run), STEPS)
    assert scalars(run) == {
        "rollout/raw_reward": [(1, 0.25), (2, 0.5), (3, 0.75)],
        "train/loss": [(1, -0.125), (2, -0.25), (3, -0.375)],
    }


def test_tensorboard_has_each_step_at_once_and_takes_what_is_not_finite(run):
    pytest.importorskip("tensorboard")
    writer = tracker("tensorboard", run)
    writer.log(1, {"a": math.inf})
    assert scalars(run) == {"a": [(1, math.inf)]}
    writer.close()


def test_tensorboard_forgets_what_a_resumed_run_repeats(run, monkeypatch):
    pytest.importorskip("tensorboard")
    fill(tracker("tensorboard", run), STEPS)
    # Files are read in the order of their names, which hold the second of their start.
    monkeypatch.setattr("tensorboard.summary.writer.event_file_writer.time.time", lambda: 9e9)
    writer = tracker("tensorboard", run)
    writer.log(2, {"train/loss": 7.0})
    writer.close()
    assert scalars(run)["train/loss"] == [(1, -0.125), (2, 7.0)]


def test_tensorboard_brings_no_torch(run):
    pytest.importorskip("tensorboard")
    program = (
        "import sys, pathlib; from vime_core.trackers import config, tensorboard; "
        "tensorboard.TensorBoardTracker(config.TensorBoardConfig(), pathlib.Path(sys.argv[1])).close(); "
        "print({'torch', 'tensorflow'} & sys.modules.keys())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(run.path)], capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout == "set()\n"


# Weights & Biases

BLOCK = 32_768


def wandb_records(file: Path) -> list:
    """The records of a .wandb file: LevelDB's log format after a header of 7 bytes."""
    from wandb.proto import wandb_internal_pb2

    content, place, parts, found = file.read_bytes(), 7, b"", []
    while place + 7 <= len(content):
        left = BLOCK - place % BLOCK
        if left < 7:
            place += left
            continue
        length, kind = int.from_bytes(content[place + 4 : place + 6], "little"), content[place + 6]
        parts += content[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # whole, or the last part
            record = wandb_internal_pb2.Record()
            record.ParseFromString(parts)
            found.append(record)
            parts = b""
    return found


def history(run) -> list[dict]:
    files = sorted((run.path / "wandb").glob("offline-run-*/*.wandb"))
    records = [record for file in files for record in wandb_records(file)]
    rows = [r.history.item for r in records if r.WhichOneof("record_type") == "history"]
    named = [
        {item.nested_key[0] if item.nested_key else item.key: json.loads(item.value_json) for item in row}
        for row in rows
    ]
    return [{key: value for key, value in row.items() if not key.startswith("_")} for row in named]


WANDB_PROGRAM = """
import json, pathlib, signal, sys
from vime_core.trackers.config import WandbConfig
from vime_core.trackers.wandb import WandbTracker

tracker = WandbTracker(WandbConfig(), pathlib.Path(sys.argv[1]))
print("started", flush=True)
for step, metrics in json.loads(sys.argv[2]):
    tracker.log(step, metrics)
if sys.argv[3] == "close":
    tracker.close()
else:
    signal.pause()
"""


def wandb_process(run, steps, then):
    """A driver that tracks; each has a service of its own, as wandb has one a process."""
    environment = {name: value for name, value in os.environ.items() if name != "WANDB_SERVICE"}
    arguments = [str(run.path), json.dumps([[step, STEPS[step]] for step in steps]), then]
    command = [sys.executable, "-c", WANDB_PROGRAM, *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)


def test_wandb_writes_an_offline_run_that_goes_on_under_its_id(run):
    pytest.importorskip("wandb")
    for steps in ([1, 2], [2, 3]):
        with wandb_process(run, steps, "close") as driver:
            assert driver.wait(120) == 0
    first, _ = (run.path / "wandb").glob("offline-run-*/*.wandb")
    files = {file.name for file in (run.path / "wandb").glob("offline-run-*/*.wandb")}
    assert files == {first.name} == {f"run-{(run.path / 'wandb' / 'vime_run_id').read_text()}.wandb"}
    assert history(run) == [{"step": step, **STEPS[step]} for step in (1, 2, 2, 3)]
    [header] = [r.run for r in wandb_records(first) if r.WhichOneof("record_type") == "run"]
    assert (header.project, header.display_name) == ("vime", "run")
    assert {item.key: json.loads(item.value_json) for item in header.config.update}["train"] == {"steps": 3}


def test_wandb_disabled_writes_nothing(run):
    pytest.importorskip("wandb")
    fill(tracker("wandb", run, mode="disabled"), STEPS)
    assert [file.name for file in (run.path / "wandb").iterdir()] == ["vime_run_id"]


def test_wandb_online_without_a_login_is_told_in_one_line(run, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("HOME", str(run.path))
    with pytest.raises(
        ConfigError, match=r"tracker wandb does not start: .*API key.*mode=online; offline needs neither"
    ):
        tracker("wandb", run, mode="online")


def test_wandb_leaves_no_process_when_its_run_is_killed(run):
    pytest.importorskip("wandb")
    with wandb_process(run, [1], "wait") as driver:
        try:
            assert driver.stdout is not None
            assert driver.stdout.readline() == "started\n"
            started = psutil.Process(driver.pid).children(recursive=True)
            assert started
        finally:
            driver.kill()
    _, alive = psutil.wait_procs(started, timeout=60)
    assert alive == []
