"""What a rollout was like, in numbers."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any

import numpy as np

from vime_core.errors import RewardError
from vime_core.types import SILENT_STATUSES, VERDICT_STATUSES

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from vime_core.types import Group, Sample


def rollout_metrics(groups: Sequence[Group]) -> dict[str, float]:
    """Metrics of the scored groups of a step, those that filters dropped included; none when there are no samples.

    `raw_reward`: mean score over judged samples, absent when none is judged. `response_len_mean|max`: tokens that the
    policy chose. `truncated_ratio`: share of samples cut at the longest length. `zero_std_group_ratio`: share of
    groups whose judged samples all have the same score, found by equality, fewer than two included.
    `verdict_<status>`: share of samples. With several rewards also what `part_metrics` gives.
    """
    samples = [sample for group in groups for sample in group.samples]
    if not samples:
        return {}
    lengths = [int(sample.loss_mask.sum()) for sample in samples]
    metrics = {
        "rollout/response_len_mean": float(np.mean(lengths)),
        "rollout/response_len_max": float(max(lengths)),
        "rollout/truncated_ratio": _truncated_ratio(samples),
        "rollout/zero_std_group_ratio": float(np.mean([len(set(_scores(group.judged))) < 2 for group in groups])),
    }
    scores = _scores(samples)
    if scores:
        metrics["rollout/raw_reward"] = float(np.mean(scores))
    statuses = Counter(sample.verdict.status for sample in samples if sample.verdict is not None)
    metrics.update({f"rollout/verdict_{status}": statuses[status] / len(samples) for status in VERDICT_STATUSES})
    return metrics | part_metrics(samples)


def part_metrics(samples: Iterable[Sample]) -> dict[str, float]:
    """What each of several rewards said, by its name; none when there is only one.

    `reward/<name>/mean`: its mean score, before the weight, over the samples that it judged; absent when it judged
    none. `reward/<name>/verdict_<status>`: share among the samples that it was asked about.
    """
    by_name: defaultdict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for sample in samples:
        for name, part in sample.parts.items():
            by_name[name].append(part)
    metrics = {}
    for name, parts in sorted(by_name.items()):
        scores = [part["score"] for part in parts if part["status"] not in SILENT_STATUSES]
        if scores:
            metrics[f"reward/{name}/mean"] = float(np.mean(scores))
        statuses = Counter(part["status"] for part in parts)
        metrics |= {f"reward/{name}/verdict_{status}": statuses[status] / len(parts) for status in VERDICT_STATUSES}
    return metrics


def dropped_metrics(reasons: Iterable[str]) -> dict[str, float]:
    """`dropped_groups`, and how many of them for each reason that filters gave."""
    counts = Counter(re.sub(r"\W+", "_", reason) for reason in reasons)
    by_reason = {f"rollout/dropped_{reason}": float(count) for reason, count in sorted(counts.items())}
    return {"rollout/dropped_groups": float(counts.total()), **by_reason}


def evaluation_metrics(name: str, groups: Sequence[Group]) -> dict[str, float]:
    """Metrics of one held-out set.

    `accuracy`: the mean over prompts of the share of samples with verdict `correct`, among the judged samples of the
    prompt; a prompt without any is left out. `failed`: number of samples whose verdict is `timeout` or `error`.

    Raises:
        RewardError: when no sample at all is judged.
    """
    samples = [sample for group in groups for sample in group.samples]
    judged = [group.judged for group in groups if group.judged]
    if not judged:
        raise RewardError(f"evaluation {name}: none of {len(samples)} samples got a verdict on the policy")
    return {
        f"eval/{name}/accuracy": float(np.mean([_correct_ratio(of_prompt) for of_prompt in judged])),
        f"eval/{name}/failed": float(sum(not sample.is_judged for sample in samples)),
        f"eval/{name}/response_len_mean": float(np.mean([int(sample.loss_mask.sum()) for sample in samples])),
        f"eval/{name}/truncated_ratio": _truncated_ratio(samples),
    }


def _scores(samples: Iterable[Sample]) -> list[float]:
    return [sample.verdict.score for sample in samples if sample.is_judged and sample.verdict is not None]


def _truncated_ratio(samples: Sequence[Sample]) -> float:
    return float(np.mean([sample.finish_reason == "length" for sample in samples]))


def _correct_ratio(samples: Sequence[Sample]) -> float:
    return float(np.mean([sample.verdict is not None and sample.verdict.status == "correct" for sample in samples]))
