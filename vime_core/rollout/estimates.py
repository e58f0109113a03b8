"""What several samples of each prompt say about a policy: pass@k, means and how sure they are."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

NORMAL_95 = 1.959963984540054
"""97.5 % quantile of the standard normal distribution."""


def pass_at_k(samples: int, correct: int, k: int) -> float:
    """Probability that at least one of `k` samples is correct, estimated without bias from more of them.

    1 - C(n - c, k) / C(n, k), for n samples of which c are correct: the share of all subsets of k samples that have a
    correct one. Chen et al. 2021, "Evaluating Large Language Models Trained on Code" (arXiv:2107.03374), equation 1.

    Args:
        samples: n, at least `k`.
        correct: c.
        k: at least 1.

    Raises:
        ValueError: when the numbers do not fit each other.
    """
    if not (0 <= correct <= samples and 1 <= k <= samples):
        raise ValueError(f"pass@{k} of {samples} samples, {correct} of them correct")
    return 1.0 - math.comb(samples - correct, k) / math.comb(samples, k)


@dataclass(frozen=True, slots=True)
class Mean:
    """A mean over prompts, and what it may be on all prompts of the kind."""

    value: float
    prompts: int
    low: float | None
    """Lower end of the 95 % confidence interval; None when there are fewer than two prompts."""
    high: float | None


def mean_of_shares(values: Sequence[float]) -> Mean:
    """Mean of numbers from 0 to 1, one a prompt, with its 95 % confidence interval.

    The interval is the mean +- 1.96 standard errors, within 0 and 1. Prompts are drawn, samples only within them, so
    the spread between prompts holds both. Miller 2024, "Adding Error Bars to Evals" (arXiv:2411.00640), equation 2 for
    the means of prompts.

    Args:
        values: at least one.
    """
    mean = float(np.mean(values))
    if len(values) < 2:
        return Mean(mean, len(values), None, None)
    margin = NORMAL_95 * float(np.std(values, ddof=1)) / math.sqrt(len(values))
    return Mean(mean, len(values), max(mean - margin, 0.0), min(mean + margin, 1.0))
