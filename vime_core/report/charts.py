"""Which charts the page has, and which metrics are in them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from vime_core.run.metrics import PLACEHOLDER, match_name, meaning
from vime_core.types import VERDICT_STATUSES

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


@dataclass(frozen=True, slots=True)
class Chart:
    """One diagram over the steps of a run."""

    title: str
    unit: str
    """Of the values; may be empty."""
    series: Mapping[str, str]
    """Metric, where `<name>` stands for any name -> its label in the legend."""
    stacked: bool = False
    """Whether the series add up."""
    total: str | None = None
    """Metric that the stacked series are parts of."""
    tones: Mapping[str, str] = field(default_factory=dict)
    """Metric -> name of the colour it always has."""


VERDICTS = {f"rollout/verdict_{status}": status for status in VERDICT_STATUSES}

STAGES = (
    "rollout",
    "score",
    "logprob",
    "update",
    "sync",
    "switch",
    "eval",
    "record",
    "save",
    "commit",
    "advantage",
    "pack",
    "probe",
    "observe",
    "report",
)
"""Stages of a step in their usual order; others follow."""

CHARTS = (
    Chart("Reward", "mean score", {"rollout/raw_reward": "reward"}),
    Chart("Each reward, before its weight", "mean score", {"reward/<name>/mean": PLACEHOLDER}),
    Chart("Held-out accuracy", "share correct", {"eval/<name>/accuracy": PLACEHOLDER}),
    Chart("Verdicts", "share of samples", VERDICTS, stacked=True, tones=VERDICTS),
    Chart(
        "Response length",
        "tokens",
        {"rollout/response_len_mean": "mean", "rollout/response_len_max": "longest"},
    ),
    Chart(
        "Log-prob difference, trainer and engines",
        "nats",
        {"train/train_rollout_logprob_abs_diff": "mean |difference|"},
    ),
    Chart(
        "Time of a step",
        "seconds",
        {f"perf/{stage}_time_s": stage for stage in STAGES}
        | {"perf/other_time_s": "the loop itself", "perf/<name>_time_s": PLACEHOLDER},
        stacked=True,
        total="perf/step_time_s",
    ),
    Chart("Loss", "", {"train/loss": "loss", "train/pg_loss": "policy gradient"}),
    Chart("Gradient norm", "before clipping", {"train/grad_norm": "norm"}),
    Chart("Learning rate", "", {"train/lr": "rate"}),
    Chart("Entropy and KL divergence", "nats per token", {"train/entropy": "entropy", "train/kl": "KL"}),
    Chart(
        "Cut, clipped and without a signal",
        "share",
        {
            "rollout/truncated_ratio": "responses cut",
            "train/clip_fraction": "tokens clipped",
            "rollout/zero_std_group_ratio": "groups with one score",
        },
    ),
    Chart("Speed of generation", "tokens/s per device", {"perf/tokens_per_gpu_per_second": "tokens/s"}),
    Chart("Staleness", "policy versions", {"async/staleness_mean": "mean", "async/staleness_max": "largest"}),
)
"""In the order of the page; those without data are left out."""


def describe(charts: Iterable[Chart], keys: Iterable[str]) -> list[dict[str, Any]]:
    """The charts that there is data for, as plain JSON values.

    Args:
        charts: in the order of the page.
        keys: names of the metrics that were recorded.
    """
    recorded = list(keys)
    described = ((chart, _series(chart, recorded)) for chart in charts)
    return [
        {
            "title": chart.title,
            "unit": chart.unit,
            "stacked": chart.stacked,
            "total": chart.total if chart.total in recorded else None,
            "series": series,
        }
        for chart, series in described
        if series
    ]


def _series(chart: Chart, recorded: list[str]) -> list[dict[str, Any]]:
    found: dict[str, str] = {}
    for pattern, label in chart.series.items():
        for key in recorded:
            match = match_name(pattern, key)
            if match and key != chart.total:
                found.setdefault(key, label.replace(PLACEHOLDER, match.groupdict().get("name") or ""))
    return [
        {"key": key, "label": label, "about": meaning(key), "tone": chart.tones.get(key)}
        for key, label in found.items()
    ]
