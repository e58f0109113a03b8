"""What a quickstart run learned: `python -m examples.quickstart.summary RUN_FOLDER`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from statistics import fmean
from textwrap import shorten
from typing import TYPE_CHECKING, Any

from vime_core.errors import VimeError
from vime_core.run.folder import RunFolder
from vime_core.run.metrics import read_metrics
from vime_core.run.rollouts import read_rollouts

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from vime_core.types import Group

GREEDY = "eval/heldout/accuracy"
SAMPLED = "eval/heldout_sampled/accuracy"
REWARD = "rollout/raw_reward"
LENGTH = "rollout/response_len_mean"
DIFFERENCE = "train/train_rollout_logprob_abs_diff"
FIRST_STEPS = 5
LAST_STEPS = 10
EXAMPLES = 3
WIDTH = 60
"""Most characters of a question or response."""


def summarise(folder: RunFolder) -> str:
    """The run in numbers, some of its samples, and where the rest is.

    Raises:
        RunFolderError: when a file of the run is missing or cannot be read.
    """
    records = read_metrics(folder.metrics_file)
    return "\n".join([*_numbers(records), *_samples(folder, records), "", *_where(folder.path)])


def _numbers(records: Sequence[Mapping[str, Any]]) -> list[str]:
    steps = f"first {FIRST_STEPS} and last {LAST_STEPS} steps"
    rows = [
        ("held-out accuracy, greedy", *_ends(_values(records, GREEDY), 1, 1)),
        ("held-out accuracy, sampled", *_ends(_values(records, SAMPLED), 1, 1)),
        (f"reward, {steps}", *_ends(_values(records, REWARD), FIRST_STEPS, LAST_STEPS)),
        (f"response tokens, {steps}", *_ends(_values(records, LENGTH), FIRST_STEPS, LAST_STEPS)),
    ]
    lines = [_row("", "before", "after")]
    lines += [_row(*row) for row in rows]
    differences = _values(records, DIFFERENCE)
    if differences:
        lines += ["", f"largest log-prob difference between trainer and engines: {max(differences):.1e}"]
    return lines


def _values(records: Sequence[Mapping[str, Any]], key: str) -> list[float]:
    return [record[key] for record in records if key in record]


def _ends(values: Sequence[float], first: int, last: int) -> tuple[str, str]:
    return _mean(values[:first]), _mean(values[-last:])


def _row(name: str, before: str, after: str) -> str:
    return f"{name:<46}{before:>8}{after:>8}"


def _mean(values: Sequence[float]) -> str:
    return f"{fmean(values):.3f}" if values else "-"


def _samples(folder: RunFolder, records: Sequence[Mapping[str, Any]]) -> list[str]:
    """The first sample of some groups, of the first and of the last step."""
    lines = []
    steps = [record["step"] for record in records if REWARD in record]
    for step in sorted({*steps[:1], *steps[-1:]}):
        file = folder.rollout_file(step)
        if file.exists():
            lines += ["", f"samples of step {step}"]
            lines += [f"  {_sample(group)}" for group in read_rollouts(file)[:EXAMPLES]]
    return lines


def _sample(group: Group) -> str:
    sample = group.samples[0]
    question = group.prompt.messages[-1]["content"] if group.prompt.messages else ""
    status = sample.verdict.status if sample.verdict else "not judged"
    return f"{shorten(question, WIDTH):<8} {shorten(sample.response_text, WIDTH):<22} {status}"


def _where(path: Path) -> list[str]:
    programs = os.path.relpath(Path(sys.executable).parent)
    return [
        f"run folder: {path}",
        f"  {programs}/vime report {path}",
        "                   curves, verdicts and samples as one HTML page",
        "  metrics.jsonl    one object a step",
        "  rollouts/        every sample of every step, as parquet",
        "  checkpoints/     the trained policy and all that a resumed run needs",
    ]


def main() -> int:
    """Command line; returns the exit status."""
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    try:
        print(summarise(RunFolder.find(Path(sys.argv[1]))))
    except VimeError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
