"""Registration only; the rollout function is imported when it is chosen."""

from __future__ import annotations

from vime_core import RolloutFunctionEntry, hookimpl
from vime_two_turn.config import TwoTurnConfig


@hookimpl
def vime_rollout_functions() -> list[RolloutFunctionEntry]:
    """The rollout function `two_turn`."""
    return [
        RolloutFunctionEntry(
            name="two_turn",
            summary="a wrong answer is followed by a hint and a second try",
            config=TwoTurnConfig,
            factory="vime_two_turn.rollout:TwoTurns",
        )
    ]
