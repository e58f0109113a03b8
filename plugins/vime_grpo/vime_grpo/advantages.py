"""Group-relative advantages in float64. numpy only: the driver computes them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from vime_core.types import Float64Array

STD_EPS = 1e-6
"""Added to the standard deviation."""


def has_variance(scores: Float64Array) -> bool:
    """Whether any two scores differ: by comparison, since equal fractions have a tiny computed deviation."""
    return scores.size > 1 and bool(scores.max() != scores.min())


def group_advantages(scores: Float64Array, *, normalize_std: bool) -> Float64Array:
    """(score - mean) / (std + 1e-6) with the unbiased std; exactly 0 for a lone score or equal scores.

    Shao et al., "DeepSeekMath" (arXiv 2402.03300), section 4.1; without the division Liu et al., "Understanding
    R1-Zero-Like Training" (Dr. GRPO, arXiv 2503.20783).

    Args:
        scores: [n] float64, of the judged samples of one group.
        normalize_std: whether to divide.

    Returns:
        [n] float64.
    """
    if not has_variance(scores):
        return np.zeros_like(scores)
    centred = scores - scores.mean()
    return centred / (scores.std(ddof=1) + STD_EPS) if normalize_std else centred
