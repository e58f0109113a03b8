"""The rewards `math`, and `math_verify` for comparison."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from math_verify import parse
from math_verify import verify as agree

from vime_core.types import Verdict
from vime_math_verifier.expression import verify_expression

if TYPE_CHECKING:
    from vime_core.types import Prompt, Sample
    from vime_math_verifier.config import MathConfig, MathVerifyConfig


class Math:
    """Implements `vime_core.plugins.interfaces.Reward`: any mathematical object as the prompt's label."""

    def __init__(self, config: MathConfig):
        self._config = config

    def score(self, sample: Sample, prompt: Prompt) -> Verdict:
        """The verdict on one response."""
        return verify_expression(
            sample.response_text,
            prompt.label,
            wrong_score=self._config.wrong_score,
            boxed_fallback=self._config.boxed_fallback,
        )


class MathVerify:
    """The library as it comes, but for its time limits: the pool has its own."""

    def __init__(self, config: MathVerifyConfig):
        logging.getLogger("math_verify").setLevel(logging.CRITICAL)

    def score(self, sample: Sample, prompt: Prompt) -> Verdict:
        """The verdict on one response."""
        gold = parse(f"${prompt.label}$", parsing_timeout=None)
        answer = parse(sample.response_text, parsing_timeout=None)
        if not answer:
            return Verdict(0.0, "unparseable", None, "math-verify finds no answer")
        correct = agree(gold, answer, timeout_seconds=None)
        return Verdict(float(correct), "correct" if correct else "wrong", str(answer[-1]))
