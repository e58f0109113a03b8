"""Schulman's estimators of the KL divergence to the reference policy, as loss terms."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable


def k1(logprobs: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """-log r = logprobs - reference. Unbiased, high variance, negative for some tokens.

    As a loss term it does not hold the policy near the reference: its gradient is that of the log-prob alone,
    whose expectation under the policy is 0 whatever the reference.
    """
    return logprobs - reference


def k2(logprobs: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """(log r)^2 / 2. Biased, low variance; its gradient is, in expectation, that of KL(policy | reference)."""
    return (logprobs - reference).square() / 2


def k3(logprobs: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """(r - 1) - log r. Unbiased, low variance, never negative; GRPO's choice.

    Its gradient is, in expectation, that of KL(reference | policy). Values are not clamped. `expm1` keeps the
    precision of `exp(x) - 1` where the two policies nearly agree.
    """
    log_r = reference - logprobs
    return torch.expm1(log_r) - log_r


ESTIMATORS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {"k1": k1, "k2": k2, "k3": k3}
"""By name; r = p_reference / p_policy of tokens that the policy sampled, [T] natural log-probs in, [T] out.

Values: J. Schulman, "Approximating KL Divergence", 2020 (joschu.net/blog/kl-approx.html). Gradients: Y. Tang and
R. Munos, "On a few pitfalls in KL divergence gradient estimation for RL" (arXiv 2506.09477).
"""
