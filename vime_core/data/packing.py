"""Samples to packed micro-batches and per-token values back to samples. Shapes follow `vime_core.types`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from vime_core.data.partition import PADDING_TOKENS
from vime_core.types import MicroBatch

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from vime_core.types import Float32Array, TrainSample, UpdateBatch

PADDING_ROW = -1
"""Entry of `MicroBatch.sample_rows` for the padding sequence."""


def sequence_length(sample: TrainSample) -> int:
    """Tokens of a sample in a packed micro-batch: prompt and response."""
    return len(sample.sample.prompt_ids) + len(sample.sample.response_ids)


def pack(samples: Sequence[TrainSample], rows: Sequence[int], *, pad_to_multiple: int = 1) -> MicroBatch:
    """Lay the chosen samples end to end, each prompt followed by its response.

    Args:
        samples: the samples of the update.
        rows: which of them; none gives a micro-batch of padding only, at least one token.
        pad_to_multiple: T is rounded up to a multiple of this by a masked sequence of token 0 at the end.

    Raises:
        ValueError: for a sample without prompt tokens (its first response token would have nothing to follow), or
            whose per-token arrays do not have the length of its response.
    """
    for row in rows:
        _check(samples[row])
    lengths = [sequence_length(samples[row]) for row in rows]
    used = sum(lengths)
    total = -(-max(used, PADDING_TOKENS) // pad_to_multiple) * pad_to_multiple
    padding = total - used
    sequences = [*lengths, padding] if padding else lengths
    batch = MicroBatch(
        token_ids=np.zeros(total, np.int64),
        position_ids=np.concatenate([np.arange(length, dtype=np.int64) for length in sequences]),
        cu_seqlens=np.cumsum([0, *sequences], dtype=np.int32),
        sample_rows=np.array([*rows, PADDING_ROW] if padding else rows, np.int64),
        loss_mask=np.zeros(total, np.bool_),
        advantages=np.zeros(total, np.float32),
        rollout_logprobs=np.zeros(total, np.float32),
    )
    for row, start, end in _sequences(batch):
        _fill(batch, samples[row], start, end)
    return batch


def unpack(
    micro_batches: Sequence[MicroBatch], values: Sequence[NDArray[Any]], samples: Sequence[TrainSample]
) -> list[NDArray[Any]]:
    """Take per-token values apart again.

    Args:
        micro_batches: together they hold each of `samples` once, in any order and from any rank.
        values: one [T] for each micro-batch.
        samples: the list that `pack` was given.

    Returns:
        One [R] for each sample: the values of its response tokens, in the dtype of `values`.

    Raises:
        ValueError: when a shape does not fit, or a sample is missing or there twice.
    """
    found: dict[int, NDArray[Any]] = {}
    for batch, tokens in zip(micro_batches, values, strict=True):
        if tokens.shape != batch.token_ids.shape:
            raise ValueError(f"values of shape {tokens.shape} for a micro-batch of {len(batch.token_ids)} tokens")
        for row, _, end in _sequences(batch):
            if row in found:
                raise ValueError(f"sample {samples[row].sample.key} is in two micro-batches")
            found[row] = tokens[end - len(samples[row].sample.response_ids) : end].copy()
    missing = [samples[row].sample.key for row in range(len(samples)) if row not in found]
    if missing:
        raise ValueError(f"samples in no micro-batch: {missing}")
    return [found[row] for row in range(len(samples))]


def attach(
    batches: Sequence[UpdateBatch],
    *,
    old: Sequence[NDArray[np.floating[Any]]] | None = None,
    ref: Sequence[NDArray[np.floating[Any]]] | None = None,
) -> None:
    """Put log-probs of the response tokens into the micro-batches, in place; 0 elsewhere.

    Args:
        batches: what `build_update` returned, all ranks or some.
        old: one [R] for each sample of the update, for `old_logprobs`; None leaves them as they are.
        ref: the same for `ref_logprobs`.

    Raises:
        ValueError: when there are fewer values than trained tokens, or as many as the whole sequence has.
    """
    for update in batches:
        for batch in update.micro_batches:
            if old is not None:
                batch.old_logprobs = _place(batch, old)
            if ref is not None:
                batch.ref_logprobs = _place(batch, ref)


def _place(batch: MicroBatch, values: Sequence[NDArray[np.floating[Any]]]) -> Float32Array:
    tokens = np.zeros(len(batch.token_ids), np.float32)
    for row, start, end in _sequences(batch):
        first = end - len(values[row])
        if first <= start or batch.loss_mask[start:first].any():
            raise ValueError(f"{len(values[row])} values do not fit the response of sample row {row}")
        tokens[first:end] = values[row]
    return tokens


def _fill(batch: MicroBatch, train: TrainSample, start: int, end: int) -> None:
    sample = train.sample
    response = slice(start + len(sample.prompt_ids), end)
    batch.token_ids[start : response.start] = sample.prompt_ids
    batch.token_ids[response] = sample.response_ids
    batch.loss_mask[response] = train.loss_mask
    batch.advantages[response] = np.where(train.loss_mask, train.advantages, 0.0)
    batch.rollout_logprobs[response] = sample.rollout_logprobs


def _sequences(batch: MicroBatch) -> Iterator[tuple[int, int, int]]:
    """(row, start, end) of each sequence that is a sample."""
    for row, start, end in zip(batch.sample_rows, batch.cu_seqlens[:-1], batch.cu_seqlens[1:], strict=True):
        if row != PADDING_ROW:
            yield int(row), int(start), int(end)


def _check(train: TrainSample) -> None:
    sample = train.sample
    if not len(sample.prompt_ids):
        raise ValueError(f"sample {sample.key} has no prompt tokens")
    expected = (len(sample.response_ids),)
    arrays = {
        "loss_mask": train.loss_mask,
        "advantages": train.advantages,
        "rollout_logprobs": sample.rollout_logprobs,
    }
    for name, array in arrays.items():
        if array.shape != expected:
            raise ValueError(f"sample {sample.key}: {name} has shape {array.shape}, its response {expected}")
