"""Group relative policy optimisation."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from vime_core.errors import ConfigError, RewardError
from vime_core.plugins.interfaces import Needs
from vime_core.types import TrainSample
from vime_grpo.advantages import group_advantages, has_variance
from vime_grpo.aggregation import SEQ_MEAN_TOKEN_SUM_NORM, denominator

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vime_core.plugins.interfaces import LossInputs, LossOutput
    from vime_core.types import Float64Array, Group, IntArray, Sample
    from vime_grpo.config import GRPOConfig


class GRPO:
    """The algorithm `grpo`; see `GRPOConfig` and the plugin's README for the formulas.

    Raises:
        ConfigError: when `norm_tokens` is missing for, or given without, `loss_agg=seq_mean_token_sum_norm`.
    """

    def __init__(self, config: GRPOConfig) -> None:
        _check_norm_tokens(config)
        self._config = config

    def needs(self) -> Needs:
        """What the trainer must supply."""
        config = self._config
        return Needs(
            old_logprobs=config.old_logprobs == "trainer" and config.updates_per_rollout > 1,
            ref_logprobs=config.kl_coef > 0,
            rollout_logprobs=config.old_logprobs == "rollout",
            entropy=config.entropy_coef > 0,
            updates_per_rollout=config.updates_per_rollout,
        )

    def advantages(self, groups: Sequence[Group]) -> list[TrainSample]:
        """One advantage a sample, the same for each of its tokens, relative to the samples with its group id.

        The baseline is that of the judged samples with at least one token that the policy chose. Of these, the
        result leaves out what `mask_truncated` and `drop_zero_variance` say.

        Raises:
            RewardError: for a score that is not finite.
        """
        by_group: dict[str, list[Sample]] = {}
        for sample in (sample for group in groups for sample in group.judged if sample.loss_mask.any()):
            by_group.setdefault(sample.group_id, []).append(sample)
        return [train for samples in by_group.values() for train in self._train_samples(samples)]

    def denominator(self, mask_lengths: IntArray) -> float:
        """Unmasked tokens for `token_mean`, else sequences with an unmasked token."""
        return denominator(self._config.loss_agg, mask_lengths)

    def loss(self, inputs: LossInputs) -> LossOutput:
        """The loss of one micro-batch, summed, not divided; see `policy_loss`."""
        from vime_grpo.losses import policy_loss  # torch, which the driver does without

        return policy_loss(inputs, self._config)

    def _train_samples(self, samples: Sequence[Sample]) -> list[TrainSample]:
        """The samples of one group that are trained on."""
        scores = _scores(samples)
        if self._config.drop_zero_variance and not has_variance(scores):
            return []
        advantages = group_advantages(scores, normalize_std=self._config.normalize_std)
        return [
            TrainSample(sample, np.full(len(sample.response_ids), advantage), sample.loss_mask)
            for sample, advantage in zip(samples, advantages, strict=True)
            if not (self._config.mask_truncated and sample.finish_reason == "length")
        ]


def _scores(samples: Sequence[Sample]) -> Float64Array:
    scores = []
    for sample in samples:
        score = math.nan if sample.verdict is None else sample.verdict.score
        if not math.isfinite(score):
            raise RewardError(
                f"sample {sample.index} of group {sample.group_id} has score {score}: rewards must return finite "
                "scores, or the status `error` where there is none"
            )
        scores.append(score)
    return np.array(scores, np.float64)


def _check_norm_tokens(config: GRPOConfig) -> None:
    chosen = config.loss_agg == SEQ_MEAN_TOKEN_SUM_NORM
    if chosen and (config.norm_tokens is None or config.norm_tokens < 1):
        raise ConfigError(
            f"algorithm.norm_tokens={config.norm_tokens}: algorithm.loss_agg={SEQ_MEAN_TOKEN_SUM_NORM} divides by it; "
            "set a positive number of tokens, such as rollout.max_response_tokens"
        )
    if not chosen and config.norm_tokens is not None:
        raise ConfigError(
            f"algorithm.norm_tokens={config.norm_tokens} is not used with algorithm.loss_agg={config.loss_agg}: "
            f"remove it or set algorithm.loss_agg={SEQ_MEAN_TOKEN_SUM_NORM}"
        )
