import signal
import subprocess
import sys
import time

import psutil
import pytest

from examples.quickstart import run
from examples.quickstart.summary import DIFFERENCE
from vime_core.errors import VimeError
from vime_core.run.folder import RunFolder
from vime_core.run.metrics import read_metrics

MODULE = "quickstart_child"


def child(tmp_path, monkeypatch, source):
    (tmp_path / f"{MODULE}.py").write_text(source)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))


def make_run(root, name, tree):
    folder = RunFolder.create_at(root / "2026-01-01" / name)
    folder.write_config(tree)
    return folder


def tree(root, **settings):
    return {"run": {"root": str(root), "seed": 0, **settings}, "resume": {"run": None}}


@pytest.mark.parametrize("status", [0, 3])
def test_the_status_of_a_part_is_handed_on(tmp_path, monkeypatch, status):
    child(tmp_path, monkeypatch, "import sys\nsys.exit(int(sys.argv[1]))")
    assert run.call(MODULE, str(status)) == status


def test_a_part_ended_by_a_signal_gives_the_shells_status(tmp_path, monkeypatch):
    child(tmp_path, monkeypatch, "import os\nos.kill(os.getpid(), 9)")
    assert run.call(MODULE) == 128 + signal.SIGKILL


def test_ctrl_c_waits_for_the_part_to_end_in_order(tmp_path, monkeypatch):
    done = tmp_path / "done"
    child(
        tmp_path,
        monkeypatch,
        "import pathlib, sys, time\n"
        "try:\n"
        "    print('ready', flush=True)\n"
        "    time.sleep(120)\n"
        "except KeyboardInterrupt:\n"
        "    time.sleep(1)\n"
        f"    pathlib.Path({str(done)!r}).touch()\n"
        "    sys.exit(130)\n",
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", f"import sys; from examples.quickstart.run import call; sys.exit(call({MODULE!r}))"],
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert parent.stdout.readline() == b"ready\n"
    for process in (parent, *psutil.Process(parent.pid).children()):
        process.send_signal(signal.SIGINT)
    assert parent.wait(60) == 130
    assert done.exists()
    parent.stdout.close()


def test_the_run_with_this_configuration_is_found_among_others(tmp_path):
    start = time.time() - 1
    mine = make_run(tmp_path, "10-00-00_quickstart", tree(tmp_path))
    make_run(tmp_path, "10-00-01_quickstart", tree(tmp_path, seed=1))
    assert run.find_run(tree(tmp_path), start).path == mine.path


def test_an_earlier_run_is_not_taken_for_this_one(tmp_path):
    make_run(tmp_path, "10-00-00_quickstart", tree(tmp_path))
    with pytest.raises(VimeError, match="no folder of its own"):
        run.find_run(tree(tmp_path), time.time() + 60)


def test_a_resumed_run_is_found_by_its_name(tmp_path):
    folder = make_run(tmp_path, "10-00-00_quickstart", {})
    resumed = {"run": {"root": "elsewhere"}, "resume": {"run": str(folder.path)}}
    assert run.find_run(resumed, time.time() + 60).path == folder.path


def test_a_mistake_in_the_settings_is_told_before_anything_is_made(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(run.EXPERIMENTS, "quickstart", (tmp_path / "assets", ()))
    assert run.main(["train.lrr=1"]) == 2
    assert "did you mean train.lr" in capsys.readouterr().err
    assert not (tmp_path / "assets").exists()


@pytest.mark.parametrize("failing", ["examples.quickstart.make_assets", "vime_core.cli"])
def test_the_first_part_that_fails_ends_the_quickstart(tmp_path, monkeypatch, failing):
    called = []

    def call(module, *arguments):
        called.append(module)
        return 7 if module == failing else 0

    monkeypatch.setitem(run.EXPERIMENTS, "quickstart", (tmp_path / "assets", ()))
    monkeypatch.setattr(run, "call", call)
    assert run.main([]) == 7
    assert called[-1] == failing


def test_the_experiment_with_experts_makes_a_model_with_experts(tmp_path, monkeypatch):
    called = []

    def call(*arguments):
        called.append(arguments)
        return 7

    monkeypatch.setitem(run.EXPERIMENTS, "quickstart_moe", (tmp_path / "assets", ("--experts",)))
    monkeypatch.setattr(run, "call", call)
    assert run.main(["experiment=quickstart_moe"]) == 7
    assert called == [("examples.quickstart.make_assets", "--experts")]


@pytest.mark.full
@pytest.mark.timeout(1500)
@pytest.mark.parametrize(
    ("seed", "learns", "experiment"),
    [
        (0, True, "quickstart"),
        (1, True, "quickstart"),
        (2, True, "quickstart"),
        (0, False, "quickstart"),
        (0, True, "quickstart_moe"),
    ],
)
def test_grpo_teaches_the_model_to_work_carefully(tmp_path, seed, learns, experiment):
    """The whole quickstart, as `make quickstart` runs it; without a learning rate nothing may rise."""
    settings = [f"experiment={experiment}", f"run.root={tmp_path}", f"run.seed={seed}"]
    settings += [] if learns else ["train.lr=0", "train.steps=20"]
    command = [sys.executable, "-m", "examples.quickstart.run", *settings]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=1400)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    (metrics_file,) = tmp_path.glob("*/*/metrics.jsonl")
    metrics = read_metrics(metrics_file)
    greedy, sampled, reward = measure(metrics)
    assert max(row[DIFFERENCE] for row in metrics if DIFFERENCE in row) < 1e-4
    assert sampled[0] <= 0.45
    if learns:
        assert greedy[1] - greedy[0] >= 0.15
        assert reward[1] - reward[0] >= 0.2
    else:
        assert abs(greedy[1] - greedy[0]) < 0.01
        assert abs(reward[1] - reward[0]) < 0.1
    assert f"{greedy[0]:.3f}" in finished.stdout
    assert f"{greedy[1]:.3f}" in finished.stdout


def measure(records):
    """(before, after) of greedy accuracy, sampled accuracy and reward."""
    pairs = []
    for key in ("eval/heldout/accuracy", "eval/heldout_sampled/accuracy"):
        values = [record[key] for record in records if key in record]
        pairs.append((values[0], values[-1]))
    rewards = [record["rollout/raw_reward"] for record in records if "rollout/raw_reward" in record]
    return *pairs, (sum(rewards[:5]) / 5, sum(rewards[-10:]) / 10)
