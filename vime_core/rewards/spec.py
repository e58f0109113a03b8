"""What a scoring process is told to run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vime_core.config.schema import RewardConfig


@dataclass(frozen=True, slots=True)
class RewardSpec:
    """One chosen reward; travels to every scoring process."""

    name: str
    factory: str
    """`package.module:Class`, called with `config`."""
    config: RewardConfig
    """The reward's settings; `weight` is its factor in the sum."""
    text_only: bool = False
    """Reads nothing of a sample but its text."""
