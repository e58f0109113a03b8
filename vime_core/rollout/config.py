"""Settings of the rollout functions in core."""

from __future__ import annotations

from dataclasses import dataclass

from vime_core.config.schema import ComponentConfig


@dataclass(kw_only=True)
class SingleTurnConfig(ComponentConfig):
    """One response to each prompt; all there is to set is in `rollout`."""

    name: str = "single_turn"
    """The entry that is used."""
