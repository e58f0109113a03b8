"""Registration only; implementations are imported when chosen."""

from __future__ import annotations

from vime_core import hookimpl
from vime_core.plugins.entries import RewardEntry
from vime_math_verifier.config import DapoMathConfig, MathConfig, MathVerifyConfig

CORPUS = "vime_math_verifier:corpus"


@hookimpl
def vime_rewards() -> list[RewardEntry]:
    """The rewards of this package."""
    return [
        RewardEntry(
            name="dapo_math",
            summary="integer after `Answer:` equals the reference (DAPO answer contract)",
            config=DapoMathConfig,
            factory="vime_math_verifier.reward:DapoMath",
            corpus=CORPUS,
            text_only=True,
        ),
        RewardEntry(
            name="math",
            summary="any mathematical object equals the reference: exact where possible, else by math-verify",
            config=MathConfig,
            factory="vime_math_verifier.math_rewards:Math",
            requires=("math_verify",),
            corpus=CORPUS,
            text_only=True,
        ),
        RewardEntry(
            name="math_verify",
            summary="the library math-verify as it comes, for comparison",
            config=MathVerifyConfig,
            factory="vime_math_verifier.math_rewards:MathVerify",
            requires=("math_verify",),
            corpus=CORPUS,
            text_only=True,
        ),
    ]
