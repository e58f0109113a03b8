"""Runs on recorded rollouts: the same numbers each time, however often the run is killed on its way."""

import numpy as np
import pytest

from vime_core.run.folder import RunFolder
from vime_core.types import Group, Prompt, Sample, Verdict, VersionSpan

pytestmark = pytest.mark.timeout(900)

DRAWN_WITH = {
    "prompts_per_step": 6,
    "samples_per_prompt": 4,
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": -1,
    "max_prompt_tokens": 512,
    "max_response_tokens": 12,
}


def record(path, *, steps):
    """A run folder with rollouts of random tokens and scores."""
    folder = RunFolder.create_at(path)
    folder.write_config({"rollout": DRAWN_WITH})
    rng = np.random.default_rng(0)
    for step in range(1, steps + 1):
        folder.write_rollouts(step, [random_group(rng, step, row) for row in range(6)], {})
    return path


def random_group(rng, step, row):
    tokens = rng.integers(0, 256, rng.integers(5, 40))
    prompt = Prompt(id=f"p{row}", messages=(), token_ids=tuple(tokens.tolist()), label="1")
    return Group(f"{step}:{row}", prompt, [random_sample(rng, prompt, f"{step}:{row}", i) for i in range(4)])


def random_sample(rng, prompt, group_id, index):
    length = int(rng.integers(1, 13))
    return Sample(
        prompt_id=prompt.id,
        group_id=group_id,
        index=index,
        prompt_ids=np.asarray(prompt.token_ids),
        response_ids=rng.integers(0, 256, length),
        loss_mask=np.ones(length, dtype=bool),
        rollout_logprobs=rng.uniform(-8, 0, length).astype(np.float32),
        finish_reason="length",
        policy_versions=(VersionSpan(0, 0, length),),
        verdict=Verdict(float(rng.random()), "correct"),
    )


@pytest.fixture(scope="module")
def recording(tmp_path_factory):
    return record(tmp_path_factory.mktemp("recordings") / "run", steps=30)


def test_replay_trains_on_recorded_rollouts(world, recording):
    finished = world.run("rollout=replay", f"rollout.path={recording}", "train.steps=4")
    assert finished.status == 0, finished.output
    assert [row["sync/policy_version"] for row in finished.metrics] == [1, 2, 3, 4]
    assert all(row["train/grad_norm"] > 0 and row["sync/bytes"] == 0 for row in finished.metrics)
