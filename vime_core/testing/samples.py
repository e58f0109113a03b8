"""Samples with random but repeatable content, for tests of algorithms and batching."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from vime_core.types import Sample, TrainSample, Verdict, VersionSpan

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vime_core.types import FinishReason, VerdictStatus


def make_sample(
    prompt_tokens: int,
    response_tokens: int,
    *,
    group: str = "group",
    index: int = 0,
    mask: Sequence[bool] | None = None,
    score: float | None = None,
    status: VerdictStatus = "correct",
    finish_reason: FinishReason = "stop",
    vocabulary: int = 1000,
) -> Sample:
    """A sample with so many tokens; its content follows from the arguments.

    Args:
        prompt_tokens: P.
        response_tokens: R.
        group: prompt id and group id.
        index: position within the group.
        mask: [R] loss mask; all True when None.
        score: of the verdict; no verdict when None.
        status: of the verdict.
        finish_reason: why the response ended.
        vocabulary: token ids are below it.
    """
    rng = np.random.default_rng([*group.encode(), index, prompt_tokens, response_tokens])
    return Sample(
        prompt_id=group,
        group_id=group,
        index=index,
        prompt_ids=rng.integers(0, vocabulary, prompt_tokens),
        response_ids=rng.integers(0, vocabulary, response_tokens),
        loss_mask=np.ones(response_tokens, np.bool_) if mask is None else np.array(mask, np.bool_),
        rollout_logprobs=-rng.random(response_tokens, np.float32),
        finish_reason=finish_reason,
        policy_versions=(VersionSpan(0, 0, response_tokens),),
        verdict=None if score is None else Verdict(score, status),
    )


def make_train_sample(sample: Sample) -> TrainSample:
    """The sample with a different standard-normal advantage for each token and its own mask."""
    rng = np.random.default_rng([*sample.group_id.encode(), sample.index])
    return TrainSample(sample, rng.standard_normal(len(sample.response_ids)), sample.loss_mask)
