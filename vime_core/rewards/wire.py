"""Samples and prompts as bytes, many at a time: what each has of its own costs a few microseconds.

Texts and prompts, which every reward reads, are apart from tokens and the like, which few do and which are many times
longer. Only between a pool and its own scoring processes; the bytes are pickles.
"""

from __future__ import annotations

import os
import pickle
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np  # at the top: unpacking must not import it within a task's time limit

from vime_core.rewards.frames import NO_DESCRIPTOR
from vime_core.types import Prompt, Sample, Verdict, VersionSpan

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray


class Encoded(NamedTuple):
    """A batch as it is sent."""

    body: bytes
    aside: bytes
    """Unpacked only when a reward asks for one of `_UNPACKED`; empty when all rewards read texts only."""


class SentSample(Sample):
    """A sample whose fields, but for its text, are unpacked when one of them is asked for."""

    __slots__ = ("_batch", "_position")

    _batch: _Batch | None
    _position: int

    def __getattr__(self, name: str) -> Any:
        """Called for a field that is not there yet."""
        if name not in _UNPACKED:
            raise AttributeError(f"a sample has no {name!r}")
        if self._batch is None:
            raise AttributeError(f"a reward that is registered as text_only reads sample.{name}")
        for field, value in zip(_UNPACKED, self._batch.fields(self._position), strict=True):
            setattr(self, field, value)
        return getattr(self, name)


_UNPACKED = (
    *("prompt_id", "group_id", "index", "finish_reason", "policy_versions", "verdict", "metadata"),
    *("prompt_ids", "response_ids", "loss_mask", "rollout_logprobs"),
)


class _Batch:
    """What the samples of a batch hold besides their texts; read once, when a reward first looks at it."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def __del__(self) -> None:
        os.close(self._descriptor)

    @cached_property
    def _content(self) -> tuple[list[tuple[Any, ...]], list[list[NDArray[Any]]]]:
        with open(self._descriptor, "rb", closefd=False) as file:
            file.seek(0)
            rows, arrays = pickle.load(file)
        return rows, [list(_split(*column)) for column in arrays]

    def fields(self, position: int) -> tuple[Any, ...]:
        """In the order of `_UNPACKED`; the arrays are views of shared ones."""
        rows, columns = self._content
        prompt_id, group_id, index, finish_reason, versions, verdict, metadata = rows[position]
        spans = tuple(VersionSpan(*version) for version in versions)
        judged = None if verdict is None else Verdict(*verdict)
        arrays = (column[position] for column in columns)
        return prompt_id, group_id, index, finish_reason, spans, judged, metadata, *arrays


def encode(samples: Sequence[Sample], prompts: Sequence[Prompt], *, text_only: bool) -> Encoded:
    """All samples with their prompts; a prompt that several share is sent once.

    Args:
        samples: The batch.
        prompts: What each answers, in the same order.
        text_only: Leave out everything but the texts.

    Raises:
        Exception: whatever pickle raises for a value that cannot be sent.
    """
    different = {id(prompt): prompt for prompt in prompts}
    places = {key: place for place, key in enumerate(different)}
    content = (
        [_prompt_fields(prompt) for prompt in different.values()],
        [places[id(prompt)] for prompt in prompts],
        [sample.response_text for sample in samples],
    )
    return Encoded(pickle.dumps(content, pickle.HIGHEST_PROTOCOL), b"" if text_only else _encode_aside(samples))


def _encode_aside(samples: Sequence[Sample]) -> bytes:
    rows = [
        (
            sample.prompt_id,
            sample.group_id,
            sample.index,
            sample.finish_reason,
            [(span.version, span.start, span.end) for span in sample.policy_versions],
            None if sample.verdict is None else _verdict_fields(sample.verdict),
            sample.metadata,
        )
        for sample in samples
    ]
    arrays = [
        _join([sample.prompt_ids for sample in samples]),
        _join([sample.response_ids for sample in samples]),
        _join([sample.loss_mask for sample in samples]),
        _join([sample.rollout_logprobs for sample in samples]),
    ]
    return pickle.dumps((rows, arrays), pickle.HIGHEST_PROTOCOL)


def decode(body: bytes | bytearray, descriptor: int) -> Iterator[tuple[Sample, Prompt]]:
    """What `encode` was given, one after another.

    Args:
        body: Of what `encode` gave.
        descriptor: Of a file that holds its `aside`, closed when no sample needs it any more; or `NO_DESCRIPTOR`.
    """
    prompt_fields, places, texts = pickle.loads(body)
    prompts = [Prompt(*fields) for fields in prompt_fields]
    batch = None if descriptor == NO_DESCRIPTOR else _Batch(descriptor)
    new = SentSample.__new__
    for position, (place, text) in enumerate(zip(places, texts, strict=True)):
        sample = new(SentSample)
        sample.response_text = text
        sample._batch = batch
        sample._position = position
        yield sample, prompts[place]


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
