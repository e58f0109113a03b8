"""Settings of the prompt source and of the reward."""

from __future__ import annotations

from dataclasses import dataclass

from vime_core import DataConfig, RewardConfig, option


@dataclass(kw_only=True)
class ReasoningGymData(DataConfig):
    """Problems that reasoning-gym makes; `train` names the task."""

    name: str = "reasoning_gym"
    """The entry that is used."""
    train: str = "leg_counting"
    """Name of one of reasoning-gym's tasks."""
    size: int = option(1000, low=1)
    """Problems in one epoch."""
    system_prompt: str = "direct"
    """Name of one of reasoning-gym's system prompts; empty for none."""


@dataclass(kw_only=True)
class ReasoningGymReward(RewardConfig):
    """The task's own scorer, which may give part of the score to an answer that is nearly right."""

    name: str = "reasoning_gym"
    """The entry that is used."""
    answer: str = option("tags", choices=("tags", "response"))
    """What is scored: the text between the last `<answer>` tags, or the whole response."""
