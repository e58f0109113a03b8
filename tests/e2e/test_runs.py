"""Real runs: Ray, Megatron-Core, vLLM behind vllm-router, weights through shared memory. Nothing is a stand-in."""

import json
import os
import re
import signal
import time
from collections import Counter
from pathlib import Path

import psutil
import pyarrow.parquet
import pytest

from vime_core.run.rollouts import read_rollouts

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]

GONE_DEADLINE_S = 60
GSM8K = Path(__file__).parents[1] / "data" / "gsm8k_test_dapo.parquet"


def test_trainer_and_engines_agree_at_every_step(first_run):
    differences = [row["train/train_rollout_logprob_abs_diff"] for row in first_run.metrics]
    assert len(differences) == 4
    assert max(differences) < 1e-4
    groups = read_rollouts(first_run.folder / "rollouts" / "step_000003.parquet")
    assert min(len(sample.prompt_ids) for group in groups for sample in group.samples) >= 300
    assert {span.version for g in groups for s in g.samples for span in s.policy_versions} == {2}


def test_probe_is_told_after_first_push_and_first_update(first_run):
    assert first_run.output.count("probe: trainer and 2 engines agree") == 2


def test_policy_moves_and_every_step_is_pushed(first_run):
    rows = first_run.metrics
    assert [row["sync/policy_version"] for row in rows] == [1, 2, 3, 4]
    assert all(row["train/grad_norm"] > 0 for row in rows)
    assert all(row["sync/bytes"] > 1e5 for row in rows)
    assert [row["step"] for row in rows] == [1, 2, 3, 4]


def test_stage_times_add_up_to_the_step(first_run):
    unnamed, total = 0.0, 0.0
    for row in first_run.metrics:
        stages = {key: row[key] for key in row if re.fullmatch(r"perf/\w+_time_s", key)}
        step = stages.pop("perf/step_time_s")
        assert sum(stages.values()) == pytest.approx(step, rel=1e-6)
        named = ("rollout", "score", "advantage", "pack", "update", "sync", "record", "observe", "other")
        assert stages.keys() > {f"perf/{stage}_time_s" for stage in named}
        assert ("perf/save_time_s" in stages) == (row["step"] % 2 == 0)
        assert ("perf/report_time_s" in stages) == (row["step"] > 1)
        unnamed, total = unnamed + stages["perf/other_time_s"], total + step
    assert unnamed < 0.03 * total


def test_prompts_of_an_epoch_are_each_used_once(first_run):
    used = [
        group.prompt.id
        for step in range(1, 5)
        for group in read_rollouts(first_run.folder / "rollouts" / f"step_{step:06d}.parquet")
    ]
    assert len(used) == 24
    assert set(Counter(used).values()) == {1}


def test_rollout_rows_are_whole(first_run):
    table = pyarrow.parquet.read_table(first_run.folder / "rollouts" / "step_000001.parquet")
    assert table.num_rows == 6 * 4
    groups = read_rollouts(first_run.folder / "rollouts" / "step_000001.parquet")
    for sample in (sample for group in groups for sample in group.samples):
        assert len(sample.response_ids) == len(sample.rollout_logprobs) == len(sample.loss_mask) > 0
        assert sample.verdict.status == "correct"


def test_the_log_tells_every_event_once_with_its_actor(first_run):
    pattern = r"(\d{4}(?:-\d\d){2} (?:\d\d:){2}\d\d,\d{3}) (INFO|WARNING) +([\w -]+): (.*) \([\w.]+\)"
    lines = (first_run.folder / "log.txt").read_text().splitlines()
    events = [re.fullmatch(pattern, line).groups() for line in lines]
    actors = {"driver", "keeper", "reward pool", "trainer rank 0", "engine-0", "engine-1", "router"}
    assert {actor for _, _, actor, _ in events} == actors
    told = Counter((actor, message) for _, _, actor, message in events)
    for step in range(1, 5):
        stages = ("rollout", "update", "sync", "record", *(("save",) if step % 2 == 0 else ()))
        assert [told["driver", f"step {step}: {stage}"] for stage in stages] == [1] * len(stages)
    checkpoints = [message for _, _, _, message in events if message.startswith("checkpoint ")]
    assert checkpoints == ["checkpoint step_000002 is complete", "checkpoint step_000004 is complete"]
    pushes = [message.partition(":")[0] for _, _, actor, message in events if message.startswith("pushed")]
    assert pushes == [f"pushed version {version}" for version in range(5)]
    assert [events[0][3].split()[0], events[-1][3]] == ["vime", "the run has ended: done"]
    assert [event for event, count in told.items() if count > 1] == []


def test_servers_left_no_errors(first_run):
    assert not (first_run.folder / "log.txt").read_text().count(" ERROR ")


def test_resume_goes_on_and_ctrl_c_leaves_nothing(world, first_run):
    """Continue the finished run for an epoch and a bit more, and interrupt it in the middle."""
    process = world.start(
        f"data.train={world.long_data}",
        "rollout.num_engines=2",
        "checkpoint.every=1",
        "train.steps=1000",
        "resume.mode=must",
        f"resume.run={first_run.folder}",
    )
    tree = wait_for_step(process, first_run.folder, 6)
    os.killpg(process.pid, signal.SIGINT)
    output, _ = process.communicate(timeout=180)
    assert process.returncode == 130, output
    assert "Task was destroyed" not in output
    assert "resumed after step 4, policy version 4" in output
    assert_gone(tree)
    assert_no_segments(first_run.folder)
    rows = first_run.metrics
    assert [row["step"] for row in rows] == list(range(1, len(rows) + 1))
    assert [row["sync/policy_version"] for row in rows] == list(range(1, len(rows) + 1))
    second_epoch = read_rollouts(first_run.folder / "rollouts" / "step_000005.parquet") + read_rollouts(
        first_run.folder / "rollouts" / "step_000006.parquet"
    )
    assert len({group.prompt.id for group in second_epoch}) == 12


def test_killed_driver_leaves_nothing_and_can_be_resumed(world):
    """SIGKILL of the driver: no process, no shared memory, no port; then the same command goes on, until SIGTERM.

    As supervisors send it: to the whole group, of which none but the driver is reached.
    """
    folder = world.folder / "killed"
    settings = ["rollout.num_engines=1", "checkpoint.every=1", "resume.mode=auto", f"resume.run={folder}"]
    process = world.start(*settings, "train.steps=1000")
    tree = wait_for_step(process, folder, 2)
    ports = {c.laddr.port for p in tree for c in listening(p)}
    process.kill()
    process.communicate(timeout=60)
    assert_gone(tree)
    assert_no_segments(folder)
    assert not ports & {c.laddr.port for c in psutil.net_connections("inet") if c.status == psutil.CONN_LISTEN}
    assert re.search(r" keeper: the driver of run \w+ has gone", (folder / "log.txt").read_text())
    done = json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])["step"]
    again = world.start(*settings, "train.steps=1000")
    tree = wait_for_step(again, folder, done + 1)
    assert [p.pid for p in tree if os.getpgid(p.pid) == again.pid] == [again.pid]
    os.killpg(again.pid, signal.SIGTERM)
    output, _ = again.communicate(timeout=180)
    assert again.returncode == 130, output
    assert "SIGTERM received" not in output
    assert "Task was destroyed" not in output
    assert last_event(folder) == "the run has ended: interrupted (vime_core.loop.train)"
    assert_gone(tree)
    steps = [json.loads(line)["step"] for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert steps == list(range(1, len(steps) + 1))


def test_terminated_while_ray_starts_leaves_nothing(world):
    folder = world.folder / "terminated"
    process = world.start("rollout.num_engines=1", "train.steps=1000", "resume.mode=auto", f"resume.run={folder}")
    tree = wait_for_ray(process)
    os.killpg(process.pid, signal.SIGTERM)
    output, _ = process.communicate(timeout=180)
    assert process.returncode == 130, output
    assert last_event(folder) == "the run has ended: interrupted (vime_core.loop.train)"
    assert_gone(tree)


def test_real_problems_on_two_ranks_in_bfloat16_with_reference_and_several_updates(world):
    """1,319 problems of up to 1,107 tokens in the DAPO schema; see tests/data/README.md."""
    finished = world.run(
        f"data.train={GSM8K}",
        "rollout.max_prompt_tokens=1280",
        "train.steps=2",
        "train.dtype=bfloat16",
        "train.world_size=2",
        "train.lr=1e-4",
        "algorithm.updates_per_rollout=2",
        "algorithm.kl_coef=0.1",
        "algorithm.entropy_coef=0.01",
        "rollout.num_engines=2",
    )
    assert finished.status == 0, finished.output
    assert "prompts: rows 1319, too_long 0, kept 1319" in finished.output
    rows = finished.metrics
    assert max(row["train/train_rollout_logprob_abs_diff"] for row in rows) < 0.02
    assert [row["train/updates"] for row in rows] == [2, 2]
    assert rows[0]["train/kl"] < rows[1]["train/kl"]
    assert all(row["train/entropy"] > 0 for row in rows)


def wait_for_step(process, folder, step):
    """The process tree of the run once its metrics tell `step`; fails when the run ends before."""
    deadline = time.monotonic() + 400
    file = folder / "metrics.jsonl"
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise AssertionError(f"the run ended with {process.returncode}:\n{process.stdout.read()}")
        lines = file.read_text().splitlines() if file.exists() else []
        if any(f'"step": {step},' in line for line in lines):
            root = psutil.Process(process.pid)
            return [root, *root.children(recursive=True)]
        time.sleep(0.2)
    process.terminate()
    raise AssertionError(f"no step {step}:\n{process.communicate(timeout=120)[0]}")


def wait_for_ray(process):
    """The process tree of the run once Ray is starting its node."""
    deadline = time.monotonic() + 120
    root = psutil.Process(process.pid)
    while time.monotonic() < deadline and process.poll() is None:
        tree = [root, *root.children(recursive=True)]
        if any(name_of(child) == "raylet" for child in tree):
            return tree
        time.sleep(0.05)
    process.terminate()
    raise AssertionError(f"no Ray:\n{process.communicate(timeout=120)[0]}")


def name_of(process):
    try:
        return process.name()
    except psutil.NoSuchProcess:
        return None


def last_event(folder):
    """The last line of the log, without time, level and the driver's name."""
    return (folder / "log.txt").read_text().splitlines()[-1].partition(" driver: ")[2]


def listening(process):
    try:
        return [c for c in process.net_connections("inet") if c.status == psutil.CONN_LISTEN]
    except psutil.NoSuchProcess:
        return []


def assert_gone(tree):
    _, alive = psutil.wait_procs(tree, timeout=GONE_DEADLINE_S)
    left = [p for p in alive if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]
    assert not left, left


def assert_no_segments(folder):
    """Nothing of vime's is left in shared memory."""
    names = [name for name in os.listdir("/dev/shm") if name.startswith("vime-")]
    mine = [name for name in names if owner_is_gone(name)]
    assert not mine, f"left by the run in {folder}: {mine}"


def owner_is_gone(name):
    """Whether no process maps the segment: those of other, living runs are not ours to judge."""
    for process in psutil.process_iter():
        try:
            if any(name in mapped.path for mapped in process.memory_maps()):
                return False
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return True
