"""From token losses to the sum that the trainer divides by the algorithm's declared denominator.

token_mean               sum over tokens / unmasked tokens
seq_mean                 sum over sequences of (sum over tokens / unmasked tokens of the sequence) / sequences
seq_mean_token_sum_norm  sum over sequences of (sum over tokens / norm_tokens) / sequences

where sequences are those with an unmasked token, over all ranks. The weight of a token follows from its own
sequence alone, so micro-batches, packing, padding and ranks change nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from vime_core.types import IntArray

TOKEN_MEAN = "token_mean"
SEQ_MEAN = "seq_mean"
SEQ_MEAN_TOKEN_SUM_NORM = "seq_mean_token_sum_norm"


def denominator(loss_agg: str, mask_lengths: IntArray) -> float:
    """Global denominator for samples with so many unmasked tokens, [N]."""
    counts = mask_lengths if loss_agg == TOKEN_MEAN else mask_lengths > 0
    return float(counts.sum())


def token_weights(
    loss_agg: str, loss_mask: torch.Tensor, cu_seqlens: torch.Tensor, norm_tokens: int | None, dtype: torch.dtype
) -> torch.Tensor:
    """Weight of each token in the sum, [T]; of no meaning outside the mask.

    Args:
        loss_agg: one of the names above.
        loss_mask: [T] bool.
        cu_seqlens: [S+1] offsets of the sequences.
        norm_tokens: for `seq_mean_token_sum_norm`.
        dtype: of the result.
    """
    weights = loss_mask.new_ones(loss_mask.shape, dtype=dtype)
    if loss_agg == SEQ_MEAN:
        return weights / _unmasked_of_own_sequence(loss_mask, cu_seqlens).clamp(min=1)
    return weights / norm_tokens if norm_tokens else weights


def _unmasked_of_own_sequence(loss_mask: torch.Tensor, cu_seqlens: torch.Tensor) -> torch.Tensor:
    """[T] number of unmasked tokens in the sequence that each token belongs to."""
    offsets = cu_seqlens.long()
    before = loss_mask.new_zeros(len(loss_mask) + 1, dtype=offsets.dtype)
    before[1:] = loss_mask.cumsum(0)
    return before[offsets].diff().repeat_interleave(offsets.diff(), output_size=len(loss_mask))
