"""Conformance of observers."""

from __future__ import annotations

import pickle

from vime_core.plugins.interfaces import Observer
from vime_core.testing.contract import require
from vime_core.testing.suite import ComponentSuite
from vime_core.testing.suites.filter import scored_groups

METRICS = {"rollout/raw_reward": 0.5, "train/loss": float("nan"), "perf/step_time_s": 1.0}


class ObserverSuite(ComponentSuite):
    """Tests of an observer: it watches whole runs, also short ones and those that end badly."""

    group = "observer"
    interface = Observer

    def test_it_watches_a_run(self) -> None:
        """All stages, in order, over several steps."""
        observer = self.make()
        observer.run_started({"train": {"steps": 2}})
        for step in (1, 2):
            observer.groups_scored(step, scored_groups())
            reason = observer.step_finished(step, METRICS)
            told = reason is None or (isinstance(reason, str) and bool(reason.strip()))
            require(told, f"step_finished must return None or why the run should end, not {reason!r:.80}")
        observer.run_finished("done")

    def test_a_run_may_end_before_its_first_step(self) -> None:
        """`run_finished` tells the reason."""
        for reason in ("interrupted", "the trainer did not answer"):
            observer = self.make()
            observer.run_started({})
            observer.run_finished(reason)

    def test_what_it_is_shown_stays_as_it_is(self) -> None:
        """Observers watch; they change nothing but whether the run goes on."""
        observer, groups, metrics = self.make(), scored_groups(), dict(METRICS)
        before = pickle.dumps((groups, metrics))
        observer.groups_scored(1, groups)
        observer.step_finished(1, metrics)
        require(pickle.dumps((groups, metrics)) == before, "the observer changes groups or metrics")
