"""Experts whose matrix products are computed together, one grouped product for all experts of a rank."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional

from vime_core.errors import ModelError
from vime_megatron import compat, mcore
from vime_megatron.layout import grouped_rows_fit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vime_core.models.geometry import ModelGeometry
    from vime_megatron.config import MegatronConfig


class GroupedExperts(mcore.SequentialMLP):
    """Megatron's experts with another forward pass: parameters, names and checkpoints are those of SequentialMLP.

    So a run may change between the two, and all that knows where an expert's weights are stays as it is.
    """

    def forward(
        self, tokens: torch.Tensor, tokens_per_expert: torch.Tensor, probabilities: torch.Tensor
    ) -> tuple[torch.Tensor, None]:
        """Gated MLPs of all experts of this rank.

        Args:
            tokens: [T, hidden], those of the first expert first.
            tokens_per_expert: [experts of this rank], adding up to T; experts may have none, and T may be 0.
            probabilities: [T], factors of the results.

        Returns:
            [T, hidden], and no bias. With expert-tensor parallelism it is this rank's summand, as in SequentialMLP.
        """
        counts = tokens_per_expert.tolist()
        gate, up = grouped_linear(tokens, counts, self._weights("linear_fc1")).chunk(2, -1)
        gated = self.config.activation_func(gate) * up
        # Probabilities are float32, and so is their product until it is rounded: as Megatron's MLP has it.
        scaled = (gated * probabilities[:, None]).to(gated.dtype)
        return grouped_linear(scaled, counts, self._weights("linear_fc2")), None

    def _weights(self, linear: str) -> list[torch.nn.Parameter]:
        return [getattr(expert, linear).weight for expert in self.local_experts]


def expert_module(geometry: ModelGeometry, config: MegatronConfig) -> type[mcore.SequentialMLP]:
    """The kind of experts that the settings ask for.

    Raises:
        ModelError: when grouped products are asked for and this torch has none.
    """
    wanted, has_kernel = config.moe_grouped_gemm, hasattr(functional, "grouped_mm")
    if wanted and not has_kernel:
        raise ModelError(
            f"train.moe_grouped_gemm=true needs torch.nn.functional.grouped_mm, which torch {torch.__version__} has "
            "not; leave it out, or install a newer torch"
        )
    if wanted is None:
        on_device = compat.has_device() and config.dtype == "bfloat16"
        wanted = on_device and has_kernel and grouped_rows_fit(config, geometry)
    return GroupedExperts if wanted else mcore.SequentialMLP


def grouped_linear(rows: torch.Tensor, counts: Sequence[int], weights: Sequence[torch.nn.Parameter]) -> torch.Tensor:
    """Each group of rows times the transpose of its own weight.

    Args:
        rows: [T, inputs], those of the first group first.
        counts: rows of each group; some may be 0.
        weights: [outputs, inputs] of each group.

    Returns:
        [T, outputs].
    """
    return _GroupedLinear.apply(rows, counts, *weights)


class _GroupedLinear(torch.autograd.Function):
    """Stacks the weights anew in each pass: from forward to backward nothing is kept but inputs and parameters."""

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, counts: Sequence[int], *weights: torch.Tensor) -> torch.Tensor:
        ctx.counts = counts
        ctx.save_for_backward(rows, *weights)
        return functional.grouped_mm(rows, torch.stack(weights).transpose(1, 2), offs=_ends(counts, rows.device))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        rows, *weights = ctx.saved_tensors
        # The kernels refuse gradients of broadcasts, whose strides are 0.
        gradient = gradients[0].contiguous()
        ends = _ends(ctx.counts, rows.device)
        of_rows = functional.grouped_mm(gradient, torch.stack(weights), offs=ends)
        of_weights = functional.grouped_mm(gradient.T, rows, offs=ends).unbind()
        for count, of_weight in zip(ctx.counts, of_weights, strict=True):
            if not count:
                # Some kernels write nothing where they have nothing to add up: github.com/pytorch/pytorch/issues/172439
                # on Blackwell, pull/174314 on ROCm.
                of_weight.zero_()
        return of_rows, None, *of_weights


def _ends(counts: Sequence[int], device: torch.device) -> torch.Tensor:
    """Where each group ends."""
    return torch.tensor(list(accumulate(counts)), dtype=torch.int32, device=device)
