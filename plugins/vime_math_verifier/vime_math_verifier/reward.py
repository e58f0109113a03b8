"""The reward `dapo_math`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vime_core.types import Verdict
from vime_math_verifier.contract import verify
from vime_math_verifier.official import NOT_FOUND, official_score

if TYPE_CHECKING:
    from vime_core.types import Prompt, Sample
    from vime_math_verifier.config import DapoMathConfig


class DapoMath:
    """Implements `vime_core.plugins.interfaces.Reward`: compares with the prompt's label."""

    def __init__(self, config: DapoMathConfig):
        """Keep the settings."""
        self._config = config

    def score(self, sample: Sample, prompt: Prompt) -> Verdict:
        """The verdict on one response; `error` when the label is not an integer."""
        if self._config.compat == "official":
            return _published(sample.response_text, prompt.label, strict_box=self._config.strict_box)
        return verify(
            sample.response_text,
            prompt.label,
            wrong_score=self._config.wrong_score,
            boxed_fallback=self._config.boxed_fallback,
        )


def _published(response: str, ground_truth: str, *, strict_box: bool) -> Verdict:
    official = official_score(response, ground_truth, strict_box=strict_box)
    if official.correct:
        return Verdict(official.score, "correct", official.prediction)
    if official.prediction in (None, NOT_FOUND):
        return Verdict(official.score, "unparseable", None, "the published rule finds no answer")
    return Verdict(official.score, "wrong", official.prediction, f"the published rule expects {ground_truth}")
