"""The samples of a step to the batches of its optimizer updates."""

from __future__ import annotations

from collections import Counter
from itertools import accumulate, groupby, pairwise
from typing import TYPE_CHECKING, Protocol

import numpy as np

from vime_core.data.packing import attach, pack, sequence_length, unpack
from vime_core.data.partition import plan
from vime_core.types import UpdateBatch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vime_core.types import IntArray, TrainSample

__all__ = ["attach", "build_update", "pack", "plan", "split_updates", "unpack"]


class DeclaresDenominator(Protocol):
    """The part of an algorithm that batching needs."""

    def denominator(self, mask_lengths: IntArray) -> float:
        """Global denominator of the loss for samples with so many unmasked tokens, [N]."""
        ...


def split_updates(samples: Sequence[TrainSample], updates: int) -> list[list[TrainSample]]:
    """Share the groups of a step out over its optimizer updates.

    Groups stay whole; their numbers differ by one at most, larger shares first. With fewer groups than updates the
    last shares are empty. The shares put together are `samples` again, so per-sample lists can be cut alongside.

    Raises:
        ValueError: for less than one update, or when the samples of a group do not follow each other.
    """
    if updates < 1:
        raise ValueError(f"updates must be at least 1, not {updates}")
    groups = [list(members) for _, members in groupby(samples, key=lambda sample: sample.sample.group_id)]
    repeated = Counter(members[0].sample.group_id for members in groups).most_common(1)
    if repeated and repeated[0][1] > 1:
        raise ValueError(f"the samples of group {repeated[0][0]!r} do not follow each other")
    least, larger = divmod(len(groups), updates)
    bounds = accumulate((least + (index < larger) for index in range(updates)), initial=0)
    return [[sample for members in groups[start:end] for sample in members] for start, end in pairwise(bounds)]


def build_update(
    samples: Sequence[TrainSample],
    algorithm: DeclaresDenominator,
    *,
    max_tokens: int,
    ranks: int,
    pad_to_multiple: int = 1,
) -> list[UpdateBatch] | None:
    """Pack the samples of one optimizer update and share them out over the data-parallel ranks.

    Args:
        samples: [N] of the update; `MicroBatch.sample_rows` are rows of this list.
        algorithm: declares the loss denominator, from the masks of all ranks together.
        max_tokens: most tokens of a micro-batch, padding included; a longer sample gets one of its own. Limits
            below `pad_to_multiple` are raised to it.
        ranks: data-parallel size.
        pad_to_multiple: see `pack`.

    Returns:
        One batch a rank, with the same number of micro-batches, denominator and token count; None when there is
        nothing to train on, because no token is unmasked or the denominator is 0.

    Raises:
        ValueError: for a denominator that is negative or not finite.
    """
    mask_lengths = np.array([np.count_nonzero(sample.loss_mask) for sample in samples], np.int64)
    denominator = float(algorithm.denominator(mask_lengths))
    if not 0.0 <= denominator < np.inf:
        raise ValueError(f"the algorithm declared a loss denominator of {denominator}")
    token_count = int(mask_lengths.sum())
    if not token_count or not denominator:
        return None
    limit = max(max_tokens // pad_to_multiple, 1) * pad_to_multiple
    rows_by_rank = plan([sequence_length(sample) for sample in samples], max_tokens=limit, ranks=ranks)
    return [
        UpdateBatch(
            micro_batches=[pack(samples, rows, pad_to_multiple=pad_to_multiple) for rows in micro_batches],
            denominator=denominator,
            token_count=token_count,
        )
        for micro_batches in rows_by_rank
    ]
