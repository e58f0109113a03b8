"""The rollout function `two_turn`."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from vime_core import Sample, VersionSpan

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterable, Sequence

    from vime_core import Completion, Prompt, RolloutTools, SamplingParams
    from vime_two_turn.config import TwoTurnConfig

RETRIED = ("wrong", "unparseable")
"""Verdicts that are the policy's fault; a reward that failed says nothing, and there is no hint then."""


class TwoTurns:
    """Implements `vime_core.RolloutFunction`."""

    def __init__(self, config: TwoTurnConfig) -> None:
        self._config = config

    async def run(
        self, prompt: Prompt, group_id: str, params: Sequence[SamplingParams], tools: RolloutTools
    ) -> list[Sample]:
        """One sample for each of `params`, generated at the same time.

        `metadata["first_try"]` is what the rewards said of the first answer.
        """
        return await _all(self._sample(prompt, group_id, index, one, tools) for index, one in enumerate(params))

    async def _sample(
        self, prompt: Prompt, group_id: str, index: int, params: SamplingParams, tools: RolloutTools
    ) -> Sample:
        short = max(int(params.max_tokens * self._config.first_share), 1)
        first = await tools.generate(prompt.token_ids, replace(params, max_tokens=short))
        sample = _single_turn(prompt, group_id, index, first)
        verdict = await tools.check(sample, prompt)
        sample.metadata["first_try"] = verdict.status
        if verdict.status not in RETRIED:
            return sample
        response = first.token_ids.tolist()
        hint = tools.next_turn(response, [{"role": "user", "content": self._config.hint}])
        left = params.max_tokens - len(response) - len(hint)
        if left < 1:
            return sample
        again = replace(params, max_tokens=left, seed=_next_seed(params.seed))
        second = await tools.generate([*prompt.token_ids, *response, *hint], again)
        return _with_turn(sample, hint, second)


def _single_turn(prompt: Prompt, group_id: str, index: int, completion: Completion) -> Sample:
    return Sample(
        prompt_id=prompt.id,
        group_id=group_id,
        index=index,
        prompt_ids=np.array(prompt.token_ids, np.int64),
        response_ids=completion.token_ids,
        loss_mask=np.ones(len(completion.token_ids), np.bool_),
        rollout_logprobs=completion.logprobs,
        finish_reason=completion.finish_reason,
        policy_versions=completion.policy_versions,
    )


def _with_turn(sample: Sample, injected: Sequence[int], completion: Completion) -> Sample:
    """The sample with injected tokens, which are not trained on and have log-prob 0, and a further turn behind it."""
    start, end = len(sample.response_ids), len(sample.response_ids) + len(injected)
    *before, last = sample.policy_versions or (VersionSpan(completion.policy_versions[0].version, 0, 0),)
    after = [VersionSpan(span.version, span.start + end, span.end + end) for span in completion.policy_versions]
    return replace(
        sample,
        response_ids=np.concatenate([sample.response_ids, np.array(injected, np.int64), completion.token_ids]),
        loss_mask=np.repeat([True, False, True], [start, len(injected), len(completion.token_ids)]),
        rollout_logprobs=np.concatenate(
            [sample.rollout_logprobs, np.zeros(len(injected), np.float32), completion.logprobs]
        ),
        finish_reason=completion.finish_reason,
        policy_versions=(*before, VersionSpan(last.version, last.start, end), *after),
    )


def _next_seed(seed: int | None) -> int | None:
    return None if seed is None else (seed + 1) % 2**31


async def _all(samples: Iterable[Coroutine[None, None, Sample]]) -> list[Sample]:
    """Run them side by side; the first failure ends the others too."""
    tasks = [asyncio.create_task(sample) for sample in samples]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
