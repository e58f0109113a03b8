"""Settings of the reward `length_penalty`."""

from __future__ import annotations

from dataclasses import dataclass

from omegaconf import II

from vime_core.config.schema import RewardConfig, option


@dataclass(kw_only=True)
class LengthPenaltyConfig(RewardConfig):
    """DAPO's soft overlong punishment: nothing up to a length, then linearly down to -1."""

    name: str = "length_penalty"
    """The entry that is used."""
    max_tokens: int = option(II("rollout.max_response_tokens"), low=1)
    """Length at which the penalty is -1, in tokens that the policy chose: L_max of the paper."""
    buffer_tokens: int | None = option(None, low=1)
    """Tokens before it over which the penalty grows: L_cache of the paper; a fifth of `max_tokens` when null."""

    def __post_init__(self) -> None:
        """Refuse a buffer that is longer than everything; values that are not resolved yet are left alone.

        Raises:
            ValueError: names both settings.
        """
        if isinstance(self.max_tokens, int) and self.buffer_tokens is not None and self.buffer_tokens > self.max_tokens:
            raise ValueError(
                f"rewards.{self.name}.buffer_tokens={self.buffer_tokens} is more than "
                f"rewards.{self.name}.max_tokens={self.max_tokens}; lower it"
            )
