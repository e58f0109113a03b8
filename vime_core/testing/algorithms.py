"""The plainest algorithm, for tests of training backends."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from vime_core.plugins.interfaces import LossOutput, Metric, Needs
from vime_core.types import TrainSample

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vime_core.plugins.interfaces import LossInputs
    from vime_core.types import Group, IntArray


class PolicyGradient:
    """Implements `Algorithm`: the score is the advantage, the loss is -advantage * log-prob (Williams, 1992)."""

    def needs(self) -> Needs:
        """Nothing besides the log-probs of the current policy."""
        return Needs(old_logprobs=False, ref_logprobs=False, rollout_logprobs=False, entropy=False)

    def advantages(self, groups: Sequence[Group]) -> list[TrainSample]:
        """The score of each judged sample, for each of its tokens."""
        return [
            TrainSample(sample, np.full(len(sample.response_ids), sample.verdict.score), sample.loss_mask)
            for group in groups
            for sample in group.judged
            if sample.verdict is not None
        ]

    def denominator(self, mask_lengths: IntArray) -> float:
        """Unmasked tokens."""
        return float(mask_lengths.sum())

    def loss(self, inputs: LossInputs) -> LossOutput:
        """Summed over unmasked tokens; metric `probability` is their mean probability."""
        import torch

        mask = inputs.loss_mask
        logprobs = torch.where(mask, inputs.logprobs, 0.0)
        loss = -(torch.where(mask, inputs.advantages, 0.0) * logprobs).sum()
        probability = torch.where(mask, logprobs.detach().exp(), 0.0).sum()
        metrics = {
            "pg_loss": Metric(loss.detach(), None),
            "probability": Metric(probability, mask.sum().to(probability.dtype)),
        }
        return LossOutput(loss, metrics)
