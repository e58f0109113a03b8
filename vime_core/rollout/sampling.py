"""How each sample is drawn, and the seed that makes it repeatable."""

from __future__ import annotations

from typing import TYPE_CHECKING

import xxhash

from vime_core.types import SamplingParams

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vime_core.config.schema import EvalSetConfig, RolloutConfig


def group_id(stage: int | str, occurrence: int, prompt_id: str) -> str:
    """Identity of a group: the step (or evaluation), how often the prompt came before in it, and the prompt."""
    return f"{stage}.{occurrence}:{prompt_id}"


def sample_seed(run_seed: int, group: str, index: int) -> int:
    """Seed in [0, 2^31) of one sample; the same in every process, and whatever else is sampled beside it."""
    return xxhash.xxh3_64_intdigest(f"{run_seed}\0{index}\0{group}".encode()) % 2**31


def rollout_params(
    config: RolloutConfig, stop_token_ids: Sequence[int], group: str, run_seed: int
) -> list[SamplingParams]:
    """One for each sample of a group that is trained on."""
    return [
        SamplingParams(
            temperature=config.temperature,
            top_p=config.top_p,
            top_k=config.top_k,
            max_tokens=config.max_response_tokens,
            stop_token_ids=tuple(stop_token_ids),
            seed=sample_seed(run_seed, group, index) if config.seed_samples else None,
        )
        for index in range(config.samples_per_prompt)
    ]


def evaluation_params(
    config: RolloutConfig, eval_set: EvalSetConfig, stop_token_ids: Sequence[int], group: str, run_seed: int
) -> list[SamplingParams]:
    """One for each sample of a held-out prompt: greedy at temperature 0, else seeded, with the rollout's cuts."""
    greedy = eval_set.temperature == 0
    return [
        SamplingParams(
            temperature=eval_set.temperature,
            top_p=1.0 if greedy else config.top_p,
            top_k=-1 if greedy else config.top_k,
            max_tokens=config.max_response_tokens,
            stop_token_ids=tuple(stop_token_ids),
            seed=None if greedy else sample_seed(run_seed, group, index),
        )
        for index in range(eval_set.samples_per_prompt)
    ]
