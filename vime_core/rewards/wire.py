"""Samples and prompts as bytes, many at a time: what each has of its own costs a few microseconds.

Only between a pool and its own scoring processes; the bytes are a pickle.
"""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

import numpy as np

from vime_core.types import Prompt, Sample, Verdict, VersionSpan

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray


def encode(pairs: Sequence[tuple[Sample, Prompt]]) -> bytes:
    """All samples with their prompts; a prompt that several share is sent once.

    Raises:
        Exception: whatever pickle raises for a value that cannot be sent.
    """
    prompts: dict[int, Prompt] = {}
    samples = []
    positions = []
    rows = []
    index_of: dict[int, int] = {}
    for sample, prompt in pairs:
        positions.append(index_of.setdefault(id(prompt), len(index_of)))
        prompts.setdefault(id(prompt), prompt)
        samples.append(sample)
        rows.append(
            (
                sample.prompt_id,
                sample.group_id,
                sample.index,
                sample.finish_reason,
                tuple((span.version, span.start, span.end) for span in sample.policy_versions),
                sample.response_text,
                None if sample.verdict is None else _verdict_fields(sample.verdict),
                sample.metadata,
            )
        )
    arrays = [
        _join([sample.prompt_ids for sample in samples]),
        _join([sample.response_ids for sample in samples]),
        _join([sample.loss_mask for sample in samples]),
        _join([sample.rollout_logprobs for sample in samples]),
    ]
    content = ([_prompt_fields(prompt) for prompt in prompts.values()], positions, rows, arrays)
    return pickle.dumps(content, pickle.HIGHEST_PROTOCOL)


def decode(body: bytes) -> Iterator[tuple[Sample, Prompt]]:
    """What `encode` was given, one after another; the arrays are views of shared ones."""
    prompt_fields, positions, rows, arrays = pickle.loads(body)
    prompts = [Prompt(*fields) for fields in prompt_fields]
    spans: dict[tuple[Any, ...], tuple[VersionSpan, ...]] = {}
    columns = zip(*(_split(*column) for column in arrays), strict=True)
    for position, row, (prompt_ids, response_ids, loss_mask, logprobs) in zip(positions, rows, columns, strict=True):
        prompt_id, group_id, index, finish_reason, versions, text, verdict, metadata = row
        if versions not in spans:
            spans[versions] = tuple(VersionSpan(*version) for version in versions)
        sample = Sample(
            prompt_id,
            group_id,
            index,
            prompt_ids,
            response_ids,
            loss_mask,
            logprobs,
            finish_reason,
            spans[versions],
            text,
            None if verdict is None else Verdict(*verdict),
            metadata,
        )
        yield sample, prompts[position]


def _prompt_fields(prompt: Prompt) -> tuple[Any, ...]:
    return prompt.id, prompt.messages, prompt.token_ids, prompt.label, prompt.data_source, prompt.metadata


def _verdict_fields(verdict: Verdict) -> tuple[Any, ...]:
    return verdict.score, verdict.status, verdict.extracted, verdict.detail


def _join(arrays: Sequence[NDArray[Any]]) -> tuple[list[int], NDArray[Any]]:
    return [len(array) for array in arrays], np.concatenate(arrays)


def _split(lengths: Iterable[int], joined: NDArray[Any]) -> Iterator[NDArray[Any]]:
    start = 0
    for length in lengths:
        yield joined[start : start + length]
        start += length
