"""Whole runs whose weights travel through a process group of trainer and engines: gloo on the CPU."""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.full, pytest.mark.engine, pytest.mark.ranks]

EXACT = 1e-4


def test_two_ranks_push_to_an_engine_with_two_workers(world):
    """The probe, after the first push and after the first update, compares trainer and engine."""
    finished = world.run(
        "placement=disjoint",
        "sync=nccl",
        "sync.bucket_mib=1",
        "train.world_size=2",
        "train.tensor_parallel=2",
        "rollout.num_engines=1",
        "rollout.tensor_parallel_size=2",
        "train.steps=2",
    )
    assert finished.status == 0, finished.output
    log = (finished.folder / "log.txt").read_text()
    for version in (0, 1):
        assert f"at version {version}" in log
    assert [row["sync/policy_version"] for row in finished.metrics] == [1, 2]
    assert all(row["sync/bytes"] > 0 for row in finished.metrics)
    assert max(row["train/train_rollout_logprob_abs_diff"] for row in finished.metrics) < EXACT
