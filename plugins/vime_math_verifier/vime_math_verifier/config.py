"""Settings of the rewards."""

from __future__ import annotations

from dataclasses import dataclass

from vime_core.config.schema import RewardConfig


@dataclass(kw_only=True)
class DapoMathConfig(RewardConfig):
    """Integer answers after `Answer:`."""

    name: str = "dapo_math"
    """The entry that is used."""
    wrong_score: float = 0.0
    """Score of a wrong or unparseable answer; DAPO's paper uses -1. A correct one scores 1."""
    boxed_fallback: bool = True
    """Without an answer after `Answer:`, read the last `\\boxed{}`."""
