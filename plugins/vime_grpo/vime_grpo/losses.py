"""The clipped policy-gradient loss with its optional KL and entropy terms. Shapes follow `LossInputs`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from vime_core.plugins.interfaces import LossOutput, Metric
from vime_grpo.aggregation import token_weights
from vime_grpo.kl import ESTIMATORS, k3

if TYPE_CHECKING:
    from vime_core.plugins.interfaces import LossInputs
    from vime_grpo.config import GRPOConfig


def clipped_loss(ratio: torch.Tensor, advantages: torch.Tensor, low: float, high: float) -> torch.Tensor:
    """-min(ratio * A, clip(ratio, 1 - low, 1 + high) * A) of each token, [T].

    Schulman et al., "Proximal Policy Optimization Algorithms" (arXiv 1707.06347), equation 7; with high > low the
    clip-higher of Yu et al., "DAPO" (arXiv 2503.14476).
    """
    return -torch.minimum(ratio * advantages, ratio.clamp(1 - low, 1 + high) * advantages)


def policy_loss(inputs: LossInputs, config: GRPOConfig) -> LossOutput:
    """Sum over tokens of weight * (clipped loss + kl_coef * KL - entropy_coef * entropy).

    Metrics: `pg_loss` as it enters the loss; means over tokens of `clip_fraction` (tokens whose clipped term
    counts), `ratio`, `policy_kl` (k3 of the old policy to the current one) and, where they are given, `kl` (to the
    reference) and `entropy`.

    Raises:
        ValueError: when the trainer did not supply what `GRPO.needs` asks for.
    """
    mask = inputs.loss_mask
    logprobs = _masked(inputs.logprobs, mask)
    advantages = _masked(inputs.advantages, mask)
    old = _old_logprobs(inputs, logprobs, config)
    ratio = (logprobs - old).exp()
    token_losses = clipped_loss(ratio, advantages, config.clip_ratio_low, config.clip_ratio_high)
    weights = token_weights(config.loss_agg, mask, inputs.cu_seqlens, config.norm_tokens, logprobs.dtype)
    tokens = mask.sum().to(logprobs.dtype)

    def token_mean(values: torch.Tensor) -> Metric:
        return Metric(_masked(values.detach(), mask).sum(), tokens)

    pg_loss = (token_losses * weights).sum()
    metrics = {
        "pg_loss": Metric(pg_loss.detach(), None),
        "clip_fraction": token_mean((token_losses > -ratio * advantages).to(ratio.dtype)),
        "ratio": token_mean(ratio),
        "policy_kl": token_mean(k3(old, logprobs)),
    }
    loss = pg_loss
    if config.kl_coef > 0:
        reference = _masked(_supplied(inputs.ref_logprobs, "ref_logprobs"), mask)
        kl = ESTIMATORS[config.kl_estimator](logprobs, reference)
        loss = loss + config.kl_coef * (kl * weights).sum()
        metrics["kl"] = token_mean(kl)
    if config.entropy_coef > 0:
        entropy = _masked(_supplied(inputs.entropy, "entropy"), mask)
        loss = loss - config.entropy_coef * (entropy * weights).sum()
        metrics["entropy"] = token_mean(entropy)
    return LossOutput(loss=loss, metrics=metrics)


def _masked(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """0 outside the mask. Selected, not multiplied: masked entries may be nan, and 0 * nan is nan."""
    return torch.where(mask, values, 0.0)


def _old_logprobs(inputs: LossInputs, logprobs: torch.Tensor, config: GRPOConfig) -> torch.Tensor:
    """Log-probs of the policy in the ratio's denominator, 0 outside the mask.

    In the only update of a step the trainer's policy before the update is the current one, so its log-probs are
    taken from the same forward pass: the ratio is exactly 1 and a second pass is saved.
    """
    if config.old_logprobs == "rollout":
        return _masked(inputs.rollout_logprobs, inputs.loss_mask)
    if config.updates_per_rollout == 1:
        return logprobs.detach()
    return _masked(_supplied(inputs.old_logprobs, "old_logprobs"), inputs.loss_mask)


def _supplied(values: torch.Tensor | None, name: str) -> torch.Tensor:
    if values is None:
        raise ValueError(f"the loss needs {name}, which the trainer did not supply")
    return values
