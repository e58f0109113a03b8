"""Registration only; reasoning-gym is imported when a component is chosen."""

from __future__ import annotations

from vime_reasoning_gym.config import ReasoningGymData, ReasoningGymReward

from vime_core import PromptSourceEntry, RewardEntry, hookimpl


@hookimpl
def vime_prompt_sources() -> list[PromptSourceEntry]:
    """The prompt source `reasoning_gym`."""
    return [
        PromptSourceEntry(
            name="reasoning_gym",
            summary="problems of reasoning-gym's tasks, made from a seed",
            config=ReasoningGymData,
            factory="vime_reasoning_gym.source:ReasoningGymSource",
            requires=("reasoning_gym",),
        )
    ]


@hookimpl
def vime_rewards() -> list[RewardEntry]:
    """The reward `reasoning_gym`."""
    return [
        RewardEntry(
            name="reasoning_gym",
            summary="reasoning-gym's own scorer of the task",
            config=ReasoningGymReward,
            factory="vime_reasoning_gym.reward:ReasoningGym",
            requires=("reasoning_gym",),
        )
    ]
