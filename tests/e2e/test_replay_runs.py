"""Runs on recorded rollouts: the same numbers each time, however often the run is killed on its way."""

import contextlib
import resource
import time

import psutil
import pytest

pytestmark = pytest.mark.timeout(900)


def test_replay_trains_on_recorded_rollouts(world, recording, tmp_path):
    """From the saved configuration of a run with engines."""
    saved = world.finish(world.launch([*world.command("rollout.num_engines=2", "rollout.max_num_seqs=8"), "--cfg=job"]))
    (tmp_path / "config.yaml").write_text(saved.output)
    config = ("--config", str(tmp_path / "config.yaml"))
    finished = world.vime("train", *config, "rollout=replay", f"rollout.path={recording}", "train.steps=4")
    assert finished.status == 0, finished.output
    assert [row["sync/policy_version"] for row in finished.metrics] == [1, 2, 3, 4]
    assert all(row["train/grad_norm"] > 0 and row["sync/bytes"] == 0 for row in finished.metrics)


@pytest.mark.full
def test_a_full_disk_while_saving_leaves_the_last_checkpoint_good(world, recording, tmp_path):
    """The trainer's files may grow no further, as on a full disk; the run ends with one line and can go on."""
    folder = tmp_path / "run"
    settings = ("rollout=replay", f"rollout.path={recording}", "checkpoint.every=1", "checkpoint.keep_last=1")
    resume = ("resume.mode=auto", f"resume.run={folder}")
    assert world.run(*settings, *resume, "train.steps=2").status == 0
    process = world.start(*settings, *resume, "train.steps=4")
    limit_files(find_trainer(process), 10_000)
    output, _ = process.communicate(timeout=300)
    told = [line for line in output.splitlines() if line.startswith("error: ")]
    assert process.returncode == 2, output
    assert len(told) == 1
    assert "cannot save to" in told[0]
    assert "File too large" in told[0]
    assert "Traceback" not in output
    assert sorted(path.name for path in (folder / "checkpoints").iterdir()) == ["step_000002"]
    finished = world.run(*settings, *resume, "train.steps=4")
    assert finished.status == 0, finished.output
    assert "resumed after step 2, policy version 2" in finished.output
    assert [row["step"] for row in finished.metrics] == [1, 2, 3, 4]


def find_trainer(process):
    """The trainer rank of a run, as soon as there is one."""
    deadline = time.monotonic() + 200
    while process.poll() is None and time.monotonic() < deadline:
        for child in psutil.Process(process.pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                if any("TrainWorker" in part for part in child.cmdline()):
                    return child.pid
        time.sleep(0.01)
    raise AssertionError(f"no trainer rank:\n{process.communicate(timeout=60)[0]}")


def limit_files(pid, size):
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
