"""What an algorithm is given and gives: advantages, a loss and its denominator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import torch

    from vime_core.types import Group, IntArray, TrainSample


@dataclass(frozen=True, slots=True)
class Needs:
    """What the trainer must supply for an algorithm; follows from its configuration."""

    old_logprobs: bool
    """A separate pass of the trainer before the first update of the step."""
    ref_logprobs: bool
    """A pass of the reference policy (the weights the run started from)."""
    rollout_logprobs: bool
    """The rollout's log-probs enter the loss as those of the behaviour policy."""
    entropy: bool
    """Differentiable entropy of each token's distribution."""
    updates_per_rollout: int = 1
    """The samples of a step are split, by group, into this many optimizer updates."""


@dataclass(frozen=True, slots=True)
class LossInputs:
    """Per-token tensors of one micro-batch, float32, [T] unless said otherwise; aligned as in `MicroBatch`.

    Entries outside `loss_mask` may hold any value, also nan: select with `torch.where`, never multiply.
    """

    logprobs: torch.Tensor
    """Current policy, differentiable."""
    entropy: torch.Tensor | None
    loss_mask: torch.Tensor
    """bool"""
    advantages: torch.Tensor
    rollout_logprobs: torch.Tensor
    old_logprobs: torch.Tensor | None
    ref_logprobs: torch.Tensor | None
    cu_seqlens: torch.Tensor
    """[S+1] int; whole sequences only, so per-sequence sums need no other rank."""


@dataclass(frozen=True, slots=True)
class Metric:
    """A mean in two parts, summed over micro-batches and ranks before dividing."""

    total: torch.Tensor
    """Scalar."""
    count: torch.Tensor | None
    """Scalar; None divides by the declared denominator of the loss."""


@dataclass(frozen=True, slots=True)
class LossOutput:
    """A sum over tokens: the trainer divides by the declared denominator, once, globally."""

    loss: torch.Tensor
    """Scalar, differentiable; 0 (and attached to the graph) when the mask is empty."""
    metrics: Mapping[str, Metric]


class Algorithm(Protocol):
    """From scored groups to a loss. Built in the driver and in every trainer rank from the same config."""

    def needs(self) -> Needs:
        """What the trainer must supply."""
        ...

    def advantages(self, groups: Sequence[Group]) -> list[TrainSample]:
        """Per-token advantages of all judged samples that can teach something, in the order of `groups`."""
        ...

    def denominator(self, mask_lengths: IntArray) -> float:
        """Global denominator of the loss; 0 when nothing is trained on.

        Args:
            mask_lengths: [N] number of unmasked tokens of each sample of the update, over all ranks.
        """
        ...

    def loss(self, inputs: LossInputs) -> LossOutput:
        """The loss of one micro-batch, summed, not divided."""
        ...
