"""metrics.jsonl: one JSON object a step, and what its keys mean."""

from __future__ import annotations

import errno
import json
import math
import operator
import os
import re
from collections import deque
from typing import TYPE_CHECKING, Any

from vime_core.errors import RunFolderError
from vime_core.run.atomic import cannot_write, write_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

METRICS: dict[str, str] = {
    "step": "Number of the step.",
    "rollout/raw_reward": "Mean score of the judged samples.",
    "rollout/response_len_mean": "Mean response length, in tokens.",
    "rollout/response_len_max": "Longest response, in tokens.",
    "rollout/truncated_ratio": "Share of samples with finish reason `length`.",
    "rollout/zero_std_group_ratio": "Share of groups whose scores are all the same: they teach nothing.",
    "rollout/verdict_correct": "Share of samples with this verdict.",
    "rollout/verdict_wrong": "Share of samples with this verdict.",
    "rollout/verdict_unparseable": "Share of samples without a readable answer; they score as wrong.",
    "rollout/verdict_timeout": "Share of samples whose scoring took too long; they are not trained on.",
    "rollout/verdict_error": "Share of samples whose scoring failed; they are not trained on.",
    "rollout/tried_groups": "Groups that were sampled; more than `rollout.prompts_per_step` when filters drop some.",
    "rollout/dropped_groups": "Groups that filters dropped.",
    "rollout/dropped_<name>": "Groups that were dropped for this reason.",
    "rollout/missing_groups": "Groups that the step lacks because filters dropped too many.",
    "reward/<name>/mean": "With several rewards: mean score of this one, before its weight, where it judged.",
    "reward/<name>/verdict_correct": "With several rewards: share among the samples that this one was asked about.",
    "reward/<name>/verdict_wrong": "The same.",
    "reward/<name>/verdict_unparseable": "The same.",
    "reward/<name>/verdict_timeout": "The same.",
    "reward/<name>/verdict_error": "The same.",
    "train/updates": "Optimizer updates of the step; 0 when no sample could teach anything.",
    "train/loss": "The loss, mean over the updates of the step.",
    "train/pg_loss": "Its policy-gradient part.",
    "train/kl": "Mean estimated KL divergence from the reference policy, per token.",
    "train/entropy": "Mean entropy of the policy, per token, in nats.",
    "train/clip_fraction": "Share of tokens whose ratio was clipped.",
    "train/ratio": "Mean ratio of the current policy's probability to the old one's, per token.",
    "train/policy_kl": "Mean estimated KL divergence of the old policy from the current one, per token.",
    "train/grad_norm": "Global norm of the gradient before clipping.",
    "train/lr": "Learning rate of the last update.",
    "train/train_rollout_logprob_abs_diff": (
        "Mean over samples of the masked mean of |trainer - rollout| log-prob at the same policy version: "
        "how far training and generation disagree about the same weights."
    ),
    "perf/step_time_s": (
        "Wall time of the step, in seconds: since the metrics of the step before were complete. The following are its "
        "parts, and add up to it."
    ),
    "perf/rollout_time_s": "Generation, until the last response has come.",
    "perf/score_time_s": "Scoring that generation did not hide.",
    "perf/advantage_time_s": "Advantages.",
    "perf/switch_time_s": "Handing the devices from the engines to the trainer and back.",
    "perf/pack_time_s": "Packing samples and splitting them over ranks.",
    "perf/logprob_time_s": "Log-prob passes of the trainer outside the update.",
    "perf/update_time_s": "Forward, backward and optimizer.",
    "perf/sync_time_s": "Weight push.",
    "perf/probe_time_s": "Comparing trainer and engines on a probe prompt.",
    "perf/eval_time_s": "Evaluation.",
    "perf/record_time_s": "Writing the rollouts.",
    "perf/save_time_s": "Saving the checkpoint.",
    "perf/commit_time_s": "Completing the checkpoint of the step before, and deleting old ones.",
    "perf/observe_time_s": "Observers, told of the scored groups.",
    "perf/report_time_s": "Trackers, observers and terminal, told of the metrics of the step before.",
    "perf/other_time_s": "The loop itself: what no other stage names.",
    "perf/tokens_per_gpu_per_second": "Response tokens / rollout seconds / rollout devices.",
    "sync/policy_version": "Version of the weights in the engines after the step.",
    "sync/bytes": "Bytes of weights that the push moved.",
    "async/staleness_mean": "Mean age of the trained samples, in policy versions.",
    "async/staleness_max": "Largest age of a trained sample, in policy versions.",
    "eval/<name>/accuracy": "Share of correct samples on the held-out set <name>, mean over its prompts.",
    "eval/<name>/failed": "Samples of the set whose scoring took too long or failed.",
    "eval/<name>/response_len_mean": "Mean response length on the set, in tokens.",
    "eval/<name>/truncated_ratio": "Share of its samples with finish reason `length`.",
}
"""Name -> meaning. `<name>` stands for any name; algorithms and filters may add keys of their own."""

PLACEHOLDER = "<name>"


def meaning(key: str) -> str:
    """What a metric says; empty for one that vime does not know."""
    if key in METRICS:
        return METRICS[key]
    return next((text for name, text in METRICS.items() if PLACEHOLDER in name and match_name(name, key)), "")


def match_name(pattern: str, key: str) -> re.Match[str] | None:
    """Whether a metric is one of those that a name with `<name>` in it stands for; group `name` tells which."""
    return re.fullmatch(re.escape(pattern).replace(re.escape(PLACEHOLDER), "(?P<name>.+)"), key)


class MetricsWriter:
    """Appends one line a step, written at once.

    JSON has no nan and no infinity: both are written as null, which `read_metrics` returns as nan.
    """

    def __init__(self, path: Path) -> None:
        """Continue the file, or start it.

        Raises:
            RunFolderError: when the file holds anything but metrics.
        """
        self._last_step = -1
        if path.exists():
            truncate_after(path, None)
            self._last_step = max((record["step"] for record in read_metrics(path)), default=-1)
        self._path = path
        self._file = path.open("ab", buffering=0)  # what a full disk refuses must not come again when it is closed

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Append the metrics of a step; numbers of Python or numpy.

        Raises:
            ValueError: when the step is not after the last one.
            RunFolderError: when it cannot be written.
        """
        if step <= self._last_step:
            raise ValueError(f"metrics of step {step} after those of step {self._last_step}")
        record = {"step": step} | {key: _plain(value) for key, value in metrics.items() if key != "step"}
        line = (json.dumps(record, allow_nan=False) + "\n").encode()
        try:
            if self._file.write(line) < len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            raise cannot_write(self._path, error) from error
        self._last_step = step

    def close(self) -> None:
        """Safe to call twice."""
        self._file.close()


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """All complete records; nan where a value was not finite. A torn last line is left out, see `is_torn`.

    Raises:
        RunFolderError: for a line that is no record of metrics.
    """
    return [
        {key: math.nan if value is None else value for key, value in record.items()} for _, record in _records(path)
    ]


def is_torn(path: Path) -> bool:
    """Whether the last line is no whole record: it is being written, or the process died while it wrote."""
    with path.open(encoding="utf-8", errors="replace") as file:
        last = deque(file, maxlen=1)
    return any(_record(line) is None for line in last)


def truncate_after(path: Path, step: int | None) -> None:
    """Remove the records of all later steps, and a torn last line; None removes only the latter.

    Raises:
        RunFolderError: for a line that is no record of metrics.
    """
    kept = [line for line, record in _records(path) if step is None or record["step"] <= step]
    text = "".join(kept)
    if text != path.read_text(encoding="utf-8", errors="replace"):
        write_text(path, text)


def _records(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """(line, record) of each complete line; only the last one may be torn."""
    with path.open(encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(file, start=1):
            record = _record(line)
            if record is None:
                if next(file, None) is None:
                    return
                raise RunFolderError(f"{path}, line {number}: no record of metrics; mend or delete that line")
            yield line, record


def _record(line: str) -> dict[str, Any] | None:
    """None for a line that is no whole record."""
    try:
        record: dict[str, Any] = json.loads(line)
        operator.index(record["step"])
    except (ValueError, TypeError, KeyError):
        return None
    return record if line.endswith("\n") else None


def _plain(value: Any) -> float | int | None:
    """A number that JSON can hold, or None."""
    try:
        return operator.index(value)
    except TypeError:
        number = float(value)
        return number if math.isfinite(number) else None
