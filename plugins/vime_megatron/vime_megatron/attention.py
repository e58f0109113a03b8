"""Causal attention within each packed sequence, over torch's scaled_dot_product_attention."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional

if TYPE_CHECKING:
    from vime_megatron.mcore import AttnMaskType, TransformerConfig
    from vime_megatron.packed import PackedSequences, SequenceGroup


class PackedAttention(torch.nn.Module):
    """Core attention for Megatron's `SelfAttention`, without TransformerEngine.

    Sequences are padded at their end, group by group. With a causal mask no token sees what comes after it, hence
    none sees padding, and what padding sees is left out: the result is that of one call a sequence.
    """

    def __init__(
        self,
        config: TransformerConfig,
        layer_number: int,
        attn_mask_type: AttnMaskType,
        attention_type: str,
        softmax_scale: float | None = None,
        **_: Any,
    ) -> None:
        super().__init__()
        self.softmax_scale = softmax_scale if softmax_scale is not None else config.kv_channels**-0.5

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: None,
        *,
        packed_seq_params: PackedSequences,
        **_: Any,
    ) -> torch.Tensor:
        """Attend.

        Args:
            query: [T, 1, heads, head_dim], heads of this tensor-parallel rank.
            key: [T, 1, key-value heads, head_dim].
            value: [T, 1, key-value heads, head_dim].
            attention_mask: unused, every sequence is causal.
            packed_seq_params: the sequences.

        Returns:
            [T, 1, heads * head_dim].
        """
        inputs = (query.squeeze(1), key.squeeze(1), value.squeeze(1))
        outputs = [self._attend(group, *inputs) for group in packed_seq_params.groups]
        output = outputs[0] if len(outputs) == 1 else torch.cat(outputs)
        if packed_seq_params.places is not None:
            output = output.index_select(0, packed_seq_params.places)
        return output.unsqueeze(1)

    def _attend(
        self, group: SequenceGroup, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> torch.Tensor:
        """Attention of one group: [B * L, heads * head_dim]."""
        q, k, v = (_sequences(group, tokens) for tokens in (query, key, value))
        grouped = query.shape[1] != key.shape[1]
        attended = functional.scaled_dot_product_attention(
            q, k, v, is_causal=True, scale=self.softmax_scale, enable_gqa=grouped
        )
        return attended.transpose(1, 2).reshape(group.count * group.length, -1)


def _sequences(group: SequenceGroup, tokens: torch.Tensor) -> torch.Tensor:
    """[T, heads, head_dim] to [B, heads, L, head_dim]."""
    chosen = tokens if group.rows is None else tokens.index_select(0, group.rows)
    return chosen.view(group.count, group.length, *tokens.shape[1:]).transpose(1, 2)
