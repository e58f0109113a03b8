"""Settings of the rollout function."""

from __future__ import annotations

from dataclasses import dataclass

from vime_core import ComponentConfig, option


@dataclass(kw_only=True)
class TwoTurnConfig(ComponentConfig):
    """An answer that the rewards find wrong is followed by a hint and a second try."""

    name: str = "two_turn"
    """The entry that is used."""
    hint: str = "That is not right. Check each step, then answer again."
    """What the user says to a wrong answer, in the form of the model's chat template."""
    first_share: float = option(0.5, above=0, below=1)
    """Share of `rollout.max_response_tokens` that the first try may take; the rest is for hint and second try."""
