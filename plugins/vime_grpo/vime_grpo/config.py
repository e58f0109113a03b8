"""Settings of `algorithm=grpo`."""

from __future__ import annotations

from dataclasses import dataclass

from vime_core.config.schema import AlgorithmConfig, option


@dataclass(kw_only=True)
class GRPOConfig(AlgorithmConfig):
    """Group relative policy optimisation."""

    name: str = "grpo"
    """The entry that is used."""
    normalize_std: bool = True
    """Divide advantages by the group's standard deviation; false leaves the centred score (Dr. GRPO)."""
    clip_ratio_low: float = option(0.2, low=0)
    """The probability ratio is clipped below 1 less this."""
    clip_ratio_high: float = option(0.28, low=0)
    """The probability ratio is clipped above 1 plus this (clip-higher, DAPO)."""
    old_logprobs: str = option("trainer", choices=("trainer", "rollout"))
    """Denominator of the ratio: the trainer's policy before the first update of the step, or the rollout's."""
    loss_agg: str = option("token_mean", choices=("token_mean", "seq_mean", "seq_mean_token_sum_norm"))
    """How token losses are averaged: over all tokens, over each sequence and then over sequences, or summed over
    each sequence, divided by `norm_tokens` and averaged over sequences."""
    norm_tokens: int | None = option(None, low=1)
    """The constant divisor of `seq_mean_token_sum_norm`, such as the longest response; only for that choice."""
    kl_coef: float = option(0.0, low=0)
    """Weight of the KL divergence to the reference policy in the loss; 0 needs no reference."""
    kl_estimator: str = option("k3", choices=("k1", "k2", "k3"), unused_if=("kl_coef", 0.0))
    """Schulman's estimator of that divergence; not used when `kl_coef` is 0."""
    entropy_coef: float = option(0.0, low=0)
    """Weight of the entropy bonus."""
    mask_truncated: bool = False
    """Leave samples that were cut at the length limit out of loss and denominator (they stay in the baseline)."""
    drop_zero_variance: bool = False
    """Leave groups whose scores are all equal out of loss and denominator, their KL and entropy terms too."""
