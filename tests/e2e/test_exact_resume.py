"""A run that was killed and resumed gives the numbers of one that never was: bit for bit, weights and optimizer too."""

import random
import shutil
import time

import pytest

from vime_core.run.folder import RunFolder
from vime_core.run.rollouts import read_rollouts

pytestmark = [
    pytest.mark.timeout(2400),
    pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning"),
]

LIVE_STEPS = 6
DETERMINISTIC = ("rollout.num_engines=1", "rollout.max_num_seqs=1", "rollout.prefix_caching=false")
"""One sequence at a time: what an engine computes does not depend on what else it computes."""

SCHEDULE = ("train.lr_schedule=cosine", "train.lr_warmup_steps=3", "train.weight_decay=0.1", "train.clip_grad=0.5")
KEPT = ("algorithm.updates_per_rollout=2", "algorithm.kl_coef=0.1")


def numbers(finished):
    """Metrics without the times."""
    return [{key: value for key, value in row.items() if not key.startswith("perf/")} for row in finished.metrics]


def tokens(folder, steps):
    """Every sample of a run, by step."""
    return [
        (sample.key, sample.response_ids.tolist(), sample.rollout_logprobs.tolist(), sample.verdict)
        for step in range(1, steps + 1)
        for group in read_rollouts(folder / "rollouts" / f"step_{step:06d}.parquet")
        for sample in group.samples
    ]


def trained_tensors(folder, step):
    """Weights, float32 master weights and both moments of a checkpoint, by name."""
    import torch
    from torch.distributed.checkpoint import FileSystemReader, load
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata

    reader = FileSystemReader(folder / "checkpoints" / f"step_{step:06d}" / "trainer" / "model")
    entries = reader.read_metadata().state_dict_metadata
    tensors = {
        name: torch.empty(entry.size, dtype=entry.properties.dtype)
        for name, entry in entries.items()
        if isinstance(entry, TensorStorageMetadata)
    }
    load(tensors, storage_reader=reader, no_dist=True)
    return tensors


def assert_same_tensors(first, second):
    assert first.keys() == second.keys()
    assert any("exp_avg_sq" in name for name in first)
    different = [name for name, tensor in first.items() if not tensor.equal(second[name])]
    assert not different


# recorded rollouts


def replay(recording, steps, dtype):
    return (
        "rollout=replay",
        f"rollout.path={recording}",
        f"train.steps={steps}",
        f"train.dtype={dtype}",
        "checkpoint.every=1",
        "train.max_tokens_per_device=128",
        *SCHEDULE,
        *KEPT,
    )


def kill(process, folder, *, step, saving, delay):
    """SIGKILL the driver while it saves `step`, or `delay` seconds after that step; False when it ended before."""
    metrics, partial = folder / "metrics.jsonl", folder / "checkpoints" / f".step_{step:06d}.partial"
    deadline = time.monotonic() + 300
    while process.poll() is None and time.monotonic() < deadline:
        reached = metrics.exists() and f'"step": {step},' in metrics.read_text()
        if partial.exists() if saving else reached:
            time.sleep(delay)
            break
        time.sleep(0.002)
    killed = process.poll() is None
    process.kill()
    output, _ = process.communicate(timeout=60)
    assert killed or process.returncode == 0, output
    return killed


def kill_often(world, folder, settings, *, steps, seed=0):
    """Start a run in `folder` again and again, each time until it is killed at or after one of `steps`."""
    moments = random.Random(seed)
    resume = ("resume.mode=auto", f"resume.run={folder}")
    killed = 0
    for number, step in enumerate(steps):
        process = world.start(*settings, *resume)
        saving = number % 2 == 0
        killed += kill(process, folder, step=step, saving=saving, delay=moments.uniform(0, 0.05 if saving else 0.5))
    assert killed >= len(steps) / 2
    finished = world.run(*settings, *resume)
    assert finished.status == 0, finished.output
    assert "resumed after step" in finished.output
    return finished


def assert_same_end(resumed, straight, steps):
    assert numbers(resumed) == numbers(straight)
    assert len(numbers(straight)) == steps
    assert_same_tensors(trained_tensors(resumed.folder, steps), trained_tensors(straight.folder, steps))


@pytest.mark.parametrize("dtype", ["float32", pytest.param("bfloat16", marks=pytest.mark.full)])
def test_a_replay_that_is_killed_ends_with_the_same_bits(world, recording, tmp_path, dtype):
    settings = replay(recording, 6, dtype)
    straight = world.run(*settings)
    assert straight.status == 0, straight.output
    assert_same_end(kill_often(world, tmp_path / "killed", settings, steps=(1, 3)), straight, 6)


LONG_STEPS, KILLS, PARTS = 30, 20, 4
KILL_STEPS = [1 + number * (LONG_STEPS - 1) // KILLS for number in range(KILLS)]
"""Spread over the run; what happens between two of them is the same whichever was the last."""


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def long_replay(request, world, recording):
    """Settings and end of a run of thirty steps that kept all its checkpoints."""
    settings = replay(recording, LONG_STEPS, request.param)
    finished = world.run(*settings, f"checkpoint.keep_last={LONG_STEPS}")
    assert finished.status == 0, finished.output
    return settings, finished


@pytest.mark.full
@pytest.mark.parametrize("part", range(PARTS))
def test_a_replay_that_is_killed_twenty_times_ends_with_the_same_bits(world, long_replay, tmp_path, part):
    """In parts, each of which goes on from where the one before must have arrived: the parts can run one by one."""
    settings, straight = long_replay
    steps = KILL_STEPS[part * KILLS // PARTS : (part + 1) * KILLS // PARTS]
    folder = tmp_path / "killed"
    if part:
        cut_copy(straight.folder, folder, after=steps[0] - 1)
    assert_same_end(kill_often(world, folder, settings, steps=steps, seed=part), straight, LONG_STEPS)


def cut_copy(run, folder, *, after):
    """A copy of a run as it was after a step."""
    shutil.copytree(run, folder)
    for checkpoint in (folder / "checkpoints").iterdir():
        if checkpoint.name > f"step_{after:06d}":
            shutil.rmtree(checkpoint)
    RunFolder.open(folder).cut_after(after)


# live


@pytest.fixture(scope="module")
def straight(world):
    """Six steps without a stop; an epoch has four."""
    finished = world.run(*DETERMINISTIC, f"train.steps={LIVE_STEPS}", *SCHEDULE)
    assert finished.status == 0, finished.output
    return finished


@pytest.mark.full
@pytest.mark.engine
def test_a_live_run_that_is_killed_samples_the_same_tokens(world, straight, tmp_path):
    folder = tmp_path / "killed"
    settings = (*DETERMINISTIC, f"train.steps={LIVE_STEPS}", *SCHEDULE, "checkpoint.every=1", "resume.mode=auto")
    process = world.start(*settings, f"resume.run={folder}")
    assert kill(process, folder, step=3, saving=False, delay=0)
    resumed = world.run(*settings, f"resume.run={folder}")
    assert resumed.status == 0, resumed.output
    assert "resumed after step" in resumed.output
    assert tokens(resumed.folder, LIVE_STEPS) == tokens(straight.folder, LIVE_STEPS)
    assert numbers(resumed) == numbers(straight)
    assert_same_tensors(trained_tensors(resumed.folder, LIVE_STEPS), trained_tensors(straight.folder, LIVE_STEPS))


@pytest.mark.full
@pytest.mark.engine
def test_a_live_run_can_be_replayed_to_the_same_weights(world, straight):
    config = ("--config", str(straight.folder / "config.yaml"))
    replayed = world.vime("train", *config, "rollout=replay", f"rollout.path={straight.folder}")
    assert replayed.status == 0, replayed.output
    trained = [{key: value for key, value in row.items() if key != "sync/bytes"} for row in numbers(straight)]
    assert [{key: row[key] for key in known} for row, known in zip(numbers(replayed), trained, strict=True)] == trained
    assert_same_tensors(trained_tensors(replayed.folder, LIVE_STEPS), trained_tensors(straight.folder, LIVE_STEPS))


@pytest.mark.full
@pytest.mark.engine
def test_recording_without_training_samples_the_untrained_policy(world, straight):
    recorded = world.run("train=none", *DETERMINISTIC, "train.lr=1e-6", "train.steps=2", "run.name=recorded")
    assert recorded.status == 0, recorded.output
    assert tokens(recorded.folder, 1) == tokens(straight.folder, 1)
    rows = recorded.metrics
    assert [(row["train/updates"], row["sync/policy_version"], row["sync/bytes"]) for row in rows] == [(0, 0, 0)] * 2
    replayed = world.run("rollout=replay", f"rollout.path={recorded.folder}", "train.steps=1", *SCHEDULE)
    assert replayed.status == 0, replayed.output
    assert numbers(replayed)[0]["train/loss"] == numbers(straight)[0]["train/loss"]
