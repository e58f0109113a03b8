"""The rollout function `single_turn`: one prompt, one response a sample."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from vime_core.rollout.concurrency import run_all
from vime_core.types import Sample

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vime_core.plugins.interfaces import RolloutTools
    from vime_core.rollout.config import SingleTurnConfig
    from vime_core.types import Prompt, SamplingParams


class SingleTurn:
    """Implements `RolloutFunction`: the policy chose every token, and a response that was cut stays cut."""

    def __init__(self, config: SingleTurnConfig) -> None:
        self.config = config

    async def run(
        self, prompt: Prompt, group_id: str, params: Sequence[SamplingParams], tools: RolloutTools
    ) -> list[Sample]:
        """One sample for each of `params`, generated at the same time."""
        prompt_ids = np.array(prompt.token_ids, dtype=np.int64)

        async def sample(index: int) -> Sample:
            completion = await tools.generate(prompt.token_ids, params[index])
            return Sample(
                prompt_id=prompt.id,
                group_id=group_id,
                index=index,
                prompt_ids=prompt_ids,
                response_ids=completion.token_ids,
                loss_mask=np.ones(len(completion.token_ids), dtype=np.bool_),
                rollout_logprobs=completion.logprobs,
                finish_reason=completion.finish_reason,
                policy_versions=completion.policy_versions,
            )

        return await run_all(sample(index) for index in range(len(params)))
