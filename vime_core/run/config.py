"""Settings of the rollout backends in core."""

from __future__ import annotations

from dataclasses import dataclass

from omegaconf import MISSING

from vime_core.config.schema import RolloutConfig


@dataclass(kw_only=True)
class ReplayConfig(RolloutConfig):
    """Recorded rollouts; the other keys say what they were drawn with, and must be those of the recorded run."""

    name: str = "replay"
    """The entry that is used."""
    path: str = MISSING
    """Run folder with the rollouts."""
