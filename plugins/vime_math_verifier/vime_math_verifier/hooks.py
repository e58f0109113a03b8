"""Registration only; implementations are imported when chosen."""

from __future__ import annotations

from vime_core import hookimpl
from vime_core.plugins.entries import RewardEntry
from vime_math_verifier.config import DapoMathConfig


@hookimpl
def vime_rewards() -> list[RewardEntry]:
    """The rewards of this package."""
    return [
        RewardEntry(
            name="dapo_math",
            summary="integer after `Answer:` equals the reference (DAPO answer contract)",
            config=DapoMathConfig,
            factory="vime_math_verifier.reward:DapoMath",
        )
    ]
