"""Conformance of trackers."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from vime_core.plugins.interfaces import Tracker
from vime_core.run.folder import RunFolder
from vime_core.testing.contract import require, require_equal
from vime_core.testing.suite import ComponentSuite, scratch

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

METRICS = {"rollout/raw_reward": 0.25, "train/loss": -0.125, "train/grad_norm": float("inf"), "train/kl": float("nan")}


class TrackerSuite(ComponentSuite):
    """Tests of a tracker."""

    group = "tracker"
    interface = Tracker

    def test_it_takes_every_step_of_a_run(self) -> None:
        """Also numbers that are not finite, no metrics, new keys, and steps that a resumed run repeats."""
        with self.opened() as (tracker, _):
            tracker.log(1, METRICS)
            tracker.log(2, {})
            tracker.log(5, {"eval/heldout/accuracy": 1})
            tracker.log(3, METRICS)

    def test_metrics_are_left_as_they_are(self) -> None:
        """Other trackers get the same mapping."""
        metrics = {"train/loss": 1.0}
        with self.opened() as (tracker, _):
            tracker.log(1, metrics)
        require_equal(metrics, {"train/loss": 1.0}, "the metrics after log")

    def test_files_of_the_run_are_left_alone(self) -> None:
        """`config.yaml` and `metrics.jsonl` belong to the run."""
        with self.opened() as (tracker, folder):
            before = {file: file.read_bytes() for file in (folder / "config.yaml", folder / "metrics.jsonl")}
            tracker.log(1, METRICS)
            tracker.close()
            for file, content in before.items():
                require(file.is_file() and file.read_bytes() == content, f"{file.name} of the run folder was changed")

    def test_files_are_written_into_the_run_folder_only(self) -> None:
        """The folder that vime was started in is the user's."""
        with scratch() as elsewhere, _working_in(elsewhere):
            with self.opened() as (tracker, _):
                tracker.log(1, METRICS)
            left = sorted(path.name for path in elsewhere.iterdir())
        require(not left, f"the tracker writes {', '.join(left)} into the working folder")

    @contextmanager
    def made(self) -> Iterator[Any]:
        """In a run folder that is removed at the end."""
        with self.opened() as (tracker, _):
            yield tracker

    @contextmanager
    def opened(self) -> Iterator[tuple[Any, Path]]:
        """A tracker and its run folder; closed twice at the end."""
        with scratch() as base:
            run = RunFolder.create_at(base / "run")
            run.write_config({"train": {"steps": 3}})
            run.metrics_file.write_text('{"step": 1}\n')
            tracker = self.build(self.config(), run.path)
            try:
                yield tracker, run.path
            finally:
                tracker.close()
                tracker.close()


@contextmanager
def _working_in(folder: Path) -> Iterator[None]:
    before = os.getcwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)
