"""RMSNorm for Megatron's layer specs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional

if TYPE_CHECKING:
    from vime_megatron.mcore import TransformerConfig


class RMSNorm(torch.nn.Module):
    """x / sqrt(mean(x^2) + eps) * weight over the last dimension (arXiv:1910.07467).

    Megatron's own wrapper of `torch.nn.RMSNorm` refuses sequence parallelism. There each rank sees a part of the
    tokens, so the weight says that its gradient must be summed over the tensor-parallel ranks.
    """

    def __init__(self, config: TransformerConfig, hidden_size: int, eps: float, **_: Any) -> None:
        super().__init__()
        self.eps = eps
        self.weight = torch.nn.Parameter(torch.ones(hidden_size, dtype=config.params_dtype))
        self.weight.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Normalise [..., hidden_size], in the dtype of the input."""
        return functional.rms_norm(hidden, self.weight.shape, self.weight, self.eps)
