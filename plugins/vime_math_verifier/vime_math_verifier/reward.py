"""The reward `dapo_math`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vime_math_verifier.contract import verify

if TYPE_CHECKING:
    from vime_core.types import Prompt, Sample, Verdict
    from vime_math_verifier.config import DapoMathConfig


class DapoMath:
    """Implements `vime_core.plugins.interfaces.Reward`: compares with the prompt's label."""

    def __init__(self, config: DapoMathConfig):
        self._config = config

    def score(self, sample: Sample, prompt: Prompt) -> Verdict:
        """The verdict on one response; `error` when the label is not an integer."""
        return verify(
            sample.response_text,
            prompt.label,
            wrong_score=self._config.wrong_score,
            boxed_fallback=self._config.boxed_fallback,
        )
