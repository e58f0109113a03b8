"""Runs on recorded rollouts: the same numbers each time, however often the run is killed on its way."""

import pytest

pytestmark = pytest.mark.timeout(900)


def test_replay_trains_on_recorded_rollouts(world, recording):
    finished = world.run("rollout=replay", f"rollout.path={recording}", "train.steps=4")
    assert finished.status == 0, finished.output
    assert [row["sync/policy_version"] for row in finished.metrics] == [1, 2, 3, 4]
    assert all(row["train/grad_norm"] > 0 and row["sync/bytes"] == 0 for row in finished.metrics)
