"""Whole runs under observers and trackers of a package: one that ends the run, one that meddles, and two that fail."""

import json

import pyarrow.parquet
import pytest

pytestmark = pytest.mark.timeout(900)

HOOKS = """
    from vime_core import ComponentConfig, ObserverEntry, TrackerEntry, hookimpl


    @hookimpl
    def vime_observers():
        return [
            ObserverEntry(name=name, summary="for tests", config=ComponentConfig, factory=f"watchers.parts:{factory}")
            for name, factory in [("stops", "Stops"), ("meddles", "Meddles"), ("fails", "Fails")]
        ]


    @hookimpl
    def vime_trackers():
        return [
            TrackerEntry(name="offline", summary="for tests", config=ComponentConfig, factory="watchers.parts:Offline")
        ]
"""

PARTS = """
    import random

    import numpy as np

    from vime_core import Observer


    class Stops(Observer):
        def __init__(self, config):
            pass

        def step_finished(self, step, metrics):
            return "two steps are enough" if step == 2 else None

        def run_finished(self, reason):
            print(f"told: {reason}", flush=True)


    class Meddles(Observer):
        def __init__(self, config):
            random.seed(5)

        def run_started(self, config):
            config["train"]["lr"] = 1.0

        def groups_scored(self, step, groups):
            for group in groups:
                group.prompt.metadata["meddled"] = True
                for sample in group.samples:
                    sample.loss_mask[:] = False
                    sample.response_ids[:] = 0
                    sample.metadata["meddled"] = True
                    sample.verdict = None
                group.samples.clear()

        def step_finished(self, step, metrics):
            metrics.update(dict.fromkeys(metrics, 0.0))
            np.random.seed(5)


    class Fails(Observer):
        def __init__(self, config):
            pass

        def groups_scored(self, step, groups):
            raise KeyError("first\\nsecond")

        def run_finished(self, reason):
            print(f"told: {reason}", flush=True)


    class Offline:
        def __init__(self, config, run_folder):
            pass

        def log(self, step, metrics):
            metrics.clear()
            raise ConnectionError("no network")

        def close(self):
            raise ConnectionError("no network")
"""


@pytest.fixture(scope="module")
def run(world, recording):
    world.site.install(
        "acme-watchers", {"watchers": "watchers.hooks"}, {"watchers/hooks.py": HOOKS, "watchers/parts.py": PARTS}
    )
    return lambda *overrides: world.run("rollout=replay", f"rollout.path={recording}", *overrides)


@pytest.fixture(scope="module")
def stopped(run):
    return run("train.steps=20", "observer=[stops]")


def test_an_observer_ends_the_run_in_order(stopped):
    assert stopped.status == 0, stopped.output
    reason = "observer stops: two steps are enough"
    assert f"stopping after step 2, {reason}" in stopped.output.splitlines()
    assert f"told: {reason}" in stopped.output.splitlines()
    assert [row["step"] for row in stopped.metrics] == [1, 2]
    assert [path.name for path in (stopped.folder / "checkpoints").iterdir()] == ["step_000002"]
    assert "Traceback" not in (stopped.folder / "log.txt").read_text()


def test_one_that_meddles_and_a_tracker_that_fails_change_nothing(run, stopped):
    """Bit for bit, against the run of the other test: metrics, samples, advantages, random generators."""
    meddled = run("train.steps=2", "observer=[meddles]", "tracker=[offline]")
    assert meddled.status == 0, meddled.output
    warning = "warning: tracker offline failed and is switched off: ConnectionError: no network"
    assert [line for line in meddled.output.splitlines() if "offline" in line] == [warning]
    assert numbers(meddled) == numbers(stopped)
    assert all(row["train/grad_norm"] > 0 for row in meddled.metrics)
    for step in (1, 2):
        rows, expected = (
            pyarrow.parquet.read_table(of.folder / "rollouts" / f"step_{step:06d}.parquet") for of in (meddled, stopped)
        )
        assert rows.equals(expected)
    assert loop_state(meddled) == loop_state(stopped)


def test_one_that_fails_is_named_and_stops_the_run(run):
    failed = run("train.steps=2", "observer=[fails]")
    assert failed.status == 2, failed.output
    told = [line for line in failed.output.splitlines() if line.startswith("error: ")]
    assert told == [
        r"error: observer fails failed in groups_scored at step 1: KeyError: 'first\nsecond'; mend it or leave it out "
        "of observer=[...]"
    ]
    assert "Traceback" not in failed.output
    assert "told: observer fails failed in groups_scored at step 1" in failed.output
    assert failed.metrics == []


def numbers(finished):
    """Metrics without the times."""
    return [{key: value for key, value in row.items() if not key.startswith("perf/")} for row in finished.metrics]


def loop_state(finished):
    return json.loads((finished.folder / "checkpoints" / "step_000002" / "state.json").read_text())["state"]
