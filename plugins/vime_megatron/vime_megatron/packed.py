"""How the sequences of a packed micro-batch are laid out for attention."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch

from vime_megatron.mcore import PackedSeqParams

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class SequenceGroup:
    """Sequences of similar length, padded at the end to that of the longest."""

    rows: torch.Tensor | None
    """[B * L] token of the micro-batch at each place, any token at places of padding; None for all tokens in order."""
    count: int
    """B sequences."""
    length: int
    """L places of each."""


@dataclass
class PackedSequences(PackedSeqParams):
    """Megatron's parameters of packed sequences, with the layout that `PackedAttention` uses.

    To Megatron's modules the micro-batch is one sequence of T tokens: they treat tokens independently, except for
    rotary positions, whose angles follow each token's own position, and for attention.
    """

    groups: list[SequenceGroup] = field(default_factory=list)
    places: torch.Tensor | None = None
    """[T] place of each token in the groups laid end to end; None when that is the order of the tokens."""


def lay_out(cu_seqlens: NDArray[np.int32], device: torch.device) -> PackedSequences:
    """Group the sequences of a micro-batch by length.

    A group holds the lengths from above 2^(k-1) to 2^k, so that padding at most doubles its tokens and there are few
    groups however many sequences there are.

    Args:
        cu_seqlens: [S+1] offsets of the sequences, each of at least one token.
        device: where attention runs.
    """
    starts, lengths = cu_seqlens[:-1].astype(np.int64), np.diff(cu_seqlens).astype(np.int64)
    if (lengths == lengths[0]).all():
        return PackedSequences(qkv_format="sbhd", groups=[SequenceGroup(None, len(lengths), int(lengths[0]))])
    classes = np.ceil(np.log2(lengths)).astype(np.int64)
    places = np.empty(cu_seqlens[-1], np.int64)
    groups, offset = [], 0
    for kind in np.unique(classes):
        chosen = np.flatnonzero(classes == kind)
        longest = int(lengths[chosen].max())
        columns = np.arange(longest)
        inside = columns < lengths[chosen, None]
        rows = np.where(inside, starts[chosen, None] + columns, starts[chosen, None])
        places[rows[inside]] = offset + np.flatnonzero(inside)
        groups.append(SequenceGroup(torch.from_numpy(rows.ravel()).to(device), len(chosen), longest))
        offset += rows.size
    return PackedSequences(qkv_format="sbhd", groups=groups, places=torch.from_numpy(places).to(device))
