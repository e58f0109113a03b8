"""Trackers: `Good`, and others that are wrong in one way. The docstring says how, and which test finds it."""

import json
from pathlib import Path


class Good:
    """Writes lines of JSON beside the run's own."""

    def __init__(self, config, run_folder):
        self.folder = run_folder
        self.file = (run_folder / "tracked.jsonl").open("a")

    def log(self, step, metrics):
        self.file.write(json.dumps({"step": step, **metrics}) + "\n")

    def close(self):
        self.file.close()


class RefusesNan(Good):
    """test_it_takes_every_step_of_a_run: raises where a metric is not finite."""

    def log(self, step, metrics):
        self.file.write(json.dumps(dict(metrics), allow_nan=False))


class StepsMustGrow(Good):
    """test_it_takes_every_step_of_a_run: refuses steps that a resumed run repeats."""

    last = 0

    def log(self, step, metrics):
        if step <= self.last:
            raise ValueError("steps must grow")
        self.last = step


class ClosesOnce(Good):
    """test_it_takes_every_step_of_a_run: raises when it is closed again."""

    def close(self):
        self.file.write("end\n")
        self.file.close()


class PopsMetrics(Good):
    """test_metrics_are_left_as_they_are: takes metrics away from other trackers."""

    def log(self, step, metrics):
        metrics.clear()


class RewritesMetrics(Good):
    """test_files_of_the_run_are_left_alone: writes into the run's own metrics file."""

    def log(self, step, metrics):
        (self.folder / "metrics.jsonl").write_text("")


class WritesHere(Good):
    """test_files_are_written_into_the_run_folder_only: writes into the folder that vime was started in."""

    def log(self, step, metrics):
        Path("tracked.txt").write_text(str(step))
