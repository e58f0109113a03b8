"""The reward `length_penalty`: long responses cost."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vime_core.types import Verdict

if TYPE_CHECKING:
    from vime_core.rewards.length_config import LengthPenaltyConfig
    from vime_core.types import Prompt, Sample

BUFFER_SHARE = 5
"""The paper's buffer is 4,096 of 20,480 tokens."""


def overlong_penalty(length: int, max_tokens: int, buffer_tokens: int) -> float:
    """Soft overlong punishment, equation 13 of DAPO (Yu et al. 2025, arXiv:2503.14476).

        R(y) = 0                                            |y| <= L_max - L_cache
               ((L_max - L_cache) - |y|) / L_cache          L_max - L_cache < |y| <= L_max
               -1                                           L_max < |y|

    Args:
        length: |y|, tokens.
        max_tokens: L_max.
        buffer_tokens: L_cache, from 1 to L_max.

    Returns:
        From -1 to 0.
    """
    excess = length - (max_tokens - buffer_tokens)
    return -min(max(excess, 0) / buffer_tokens, 1.0) + 0.0


class LengthPenalty:
    """Implements `Reward`: shapes the score and says nothing of the answer, so that the status is `correct`."""

    def __init__(self, config: LengthPenaltyConfig) -> None:
        self._max = config.max_tokens
        self._buffer = config.buffer_tokens or max(config.max_tokens // BUFFER_SHARE, 1)

    def score(self, sample: Sample, prompt: Prompt) -> Verdict:
        """The penalty on the tokens that the policy chose."""
        length = int(sample.loss_mask.sum())
        penalty = overlong_penalty(length, self._max, self._buffer)
        free = self._max - self._buffer
        return Verdict(penalty, "correct", detail=f"{length} tokens, {free} are free" if penalty else "")
