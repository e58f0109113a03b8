"""Settings of the rewards."""

from __future__ import annotations

from dataclasses import dataclass

from vime_core.config.schema import RewardConfig, option


@dataclass(kw_only=True)
class DapoMathConfig(RewardConfig):
    """Integer answers after `Answer:`."""

    name: str = "dapo_math"
    """The entry that is used."""
    compat: str = option("vime", choices=("vime", "official"))
    """`official` scores as the published DAPO rule did, mistakes included: +1 or -1, whatever the settings below."""
    strict_box: bool = False
    """With `compat=official`: accept nothing but a `\\boxed{}` in the last 100 characters."""
    wrong_score: float = option(0.0, unused_if=("compat", "official"))
    """Score of a wrong or unparseable answer; DAPO's paper uses -1. A correct one scores 1."""
    boxed_fallback: bool = option(True, unused_if=("compat", "official"))
    """Without an answer after `Answer:`, read the last `\\boxed{}`."""

    def __post_init__(self) -> None:
        """Refuse a setting that would have no effect.

        Raises:
            ValueError: when `strict_box` is set without `compat=official`.
        """
        if self.strict_box and self.compat != "official":
            raise ValueError("rewards.dapo_math.strict_box needs rewards.dapo_math.compat=official")


@dataclass(kw_only=True)
class MathConfig(RewardConfig):
    """Any mathematical object as the answer."""

    name: str = "math"
    """The entry that is used."""
    wrong_score: float = 0.0
    """Score of a wrong or unparseable answer; a correct one scores 1."""
    boxed_fallback: bool = True
    """Without an answer after `Answer:`, read the last `\\boxed{}`."""


@dataclass(kw_only=True)
class MathVerifyConfig(RewardConfig):
    """The library math-verify with its defaults."""

    name: str = "math_verify"
    """The entry that is used."""
