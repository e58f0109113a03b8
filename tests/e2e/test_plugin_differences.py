"""A worker that sees other plugins than the driver ends `vime train` before step 0, with exit status 2."""

import subprocess

import pytest

from vime_core.testing.distributions import FakeSite

HOOKS = """
    import os

    if "VIME_RUN_ID" in os.environ:
        raise OSError("no such disk")
"""
"""Fails in the processes of a run, and nowhere else."""


@pytest.mark.full
@pytest.mark.engine
def test_a_plugin_that_fails_in_the_trainer_only(world, tmp_path):
    site = FakeSite(tmp_path / "site")
    site.install("acme-reward", {"acme": "acme.hooks"}, {"acme/hooks.py": HOOKS})
    done = subprocess.run(
        world.command("train.steps=1", f"run.root={tmp_path}/out"),
        env=world.environment(site),
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    told = "trainer rank 0 sees other plugins than the driver: acme: driver ('acme-reward', '1.0'), rank None"
    assert done.stderr.splitlines()[-1] == f"error: {told}"
    [run] = tmp_path.glob("out/*/*")
    assert not (run / "metrics.jsonl").exists() or not (run / "metrics.jsonl").read_text()
