"""The reward of `reward_pool.py`; scoring processes import it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vime_core.config.schema import RewardConfig
from vime_math_verifier.config import DapoMathConfig
from vime_math_verifier.reward import DapoMath

if TYPE_CHECKING:
    from vime_core.types import Prompt, Sample, Verdict

HOSTILE = "spin"


@dataclass(kw_only=True)
class SpinConfig(RewardConfig):
    """Settings of `Spin`."""

    name: str = "spin"
    file: str = ""
    """Where the start of each hostile task is noted."""


class Spin:
    """The verdict of `dapo_math`, but for responses that make it spin."""

    def __init__(self, config: SpinConfig) -> None:
        self._file = config.file
        self._dapo_math = DapoMath(DapoMathConfig())

    def score(self, sample: Sample, prompt: Prompt) -> Verdict:
        """The verdict, or none ever."""
        if sample.response_text != HOSTILE:
            return self._dapo_math.score(sample, prompt)
        with open(self._file, "a", encoding="ascii") as file:
            file.write(f"{sample.prompt_id} {time.monotonic()}\n")
        while True:
            pass
