"""How many samples of a step got no verdict on the policy, and when that is too many."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from vime_core.errors import RewardError
from vime_core.types import SILENT_STATUSES, VERDICT_STATUSES, VerdictStatus

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from vime_core.types import Group, Sample


def verdict_shares(samples: Sequence[Sample]) -> dict[VerdictStatus, float]:
    """Share of each status among the samples that have a verdict; all 0 when none has."""
    counts = Counter(sample.verdict.status for sample in samples if sample.verdict is not None)
    return {status: counts[status] / max(counts.total(), 1) for status in VERDICT_STATUSES}


def check_failures(groups: Iterable[Group], max_failure_ratio: float) -> None:
    """Stop a run whose rewards fail instead of judging.

    Raises:
        RewardError: when the share of `timeout` and `error` is above the ratio; names the commonest cause.
    """
    samples = [sample for group in groups for sample in group.samples]
    shares = verdict_shares(samples)
    failed = sum(shares[status] for status in SILENT_STATUSES)
    if failed <= max_failure_ratio:
        return
    causes = Counter(
        f"{sample.verdict.status}: {sample.verdict.detail}"
        for sample in samples
        if sample.verdict is not None and sample.verdict.status in SILENT_STATUSES
    )
    [(cause, count)] = causes.most_common(1)
    raise RewardError(
        f"{failed:.0%} of {len(samples)} samples got no verdict, reward_pool.max_failure_ratio is "
        f"{max_failure_ratio:.0%}; the commonest cause ({count} samples) is {cause}"
    )
