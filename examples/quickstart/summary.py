"""What a quickstart run learned: `python -m examples.quickstart.summary RUN_FOLDER`."""

from __future__ import annotations

import sys
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from vime_core.errors import VimeError
from vime_core.run.folder import RunFolder
from vime_core.run.metrics import read_metrics
from vime_core.run.rollouts import read_rollouts

if TYPE_CHECKING:
    from collections.abc import Sequence

GREEDY = "eval/heldout/accuracy"
SAMPLED = "eval/heldout_sampled/accuracy"
REWARD = "rollout/raw_reward"
DIFFERENCE = "train/train_rollout_logprob_abs_diff"
FIRST_STEPS = 5
LAST_STEPS = 10
EXAMPLES = 3


def summarise(folder: RunFolder) -> str:
    """The run in numbers, some of its samples, and where the rest is.

    Raises:
        RunFolderError: when a file of the run is missing or cannot be read.
    """
    records = read_metrics(folder.metrics_file)
    rewards = [record[REWARD] for record in records if REWARD in record]
    rows = [
        ("held-out accuracy, greedy", *_ends([record[GREEDY] for record in records if GREEDY in record])),
        ("held-out accuracy, sampled", *_ends([record[SAMPLED] for record in records if SAMPLED in record])),
        (
            f"reward, first {FIRST_STEPS} and last {LAST_STEPS} steps",
            _mean(rewards[:FIRST_STEPS]),
            _mean(rewards[-LAST_STEPS:]),
        ),
    ]
    lines = [
        f"{'':<34}{'before':>8}{'after':>8}",
        *(f"{name:<34}{before:>8}{after:>8}" for name, before, after in rows),
    ]
    differences = [record[DIFFERENCE] for record in records if DIFFERENCE in record]
    if differences:
        lines += ["", f"largest log-prob difference between trainer and engines: {max(differences):.1e}"]
    for step in _ends_of(sorted({record["step"] for record in records if REWARD in record})):
        lines += ["", f"step {step}", *_examples(folder, step)]
    return "\n".join([*lines, "", *_where(folder.path)])


def _ends(values: Sequence[float]) -> tuple[str, str]:
    return (f"{values[0]:.3f}", f"{values[-1]:.3f}") if values else ("-", "-")


def _mean(values: Sequence[float]) -> str:
    return f"{fmean(values):.3f}" if values else "-"


def _ends_of(steps: Sequence[int]) -> list[int]:
    return sorted({steps[0], steps[-1]}) if steps else []


def _examples(folder: RunFolder, step: int) -> list[str]:
    """The first sample of some groups."""
    file = folder.rollout_file(step)
    groups = read_rollouts(file)[:EXAMPLES] if file.exists() else []
    return [f"  {_line(group.prompt.messages, group.samples[0])}" for group in groups]


def _line(messages: Sequence[Any], sample: Any) -> str:
    status = sample.verdict.status if sample.verdict else "not judged"
    return f"{messages[-1]['content']!s:<8} {sample.response_text!r:<16} {status}"


def _where(path: Path) -> list[str]:
    return [
        f"run folder: {path}",
        "  metrics.jsonl    one object a step",
        "  rollouts/        every sample of every step, as parquet",
        "  checkpoints/     the trained policy and all that a resumed run needs",
        "  config.yaml, log.txt, logs/",
        f"again: {Path(sys.executable).name} -m examples.quickstart.summary {path}",
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
