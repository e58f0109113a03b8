"""The reward `reasoning_gym`."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import reasoning_gym
from reasoning_gym.utils import extract_answer

from vime_core import Verdict

if TYPE_CHECKING:
    from vime_reasoning_gym.config import ReasoningGymReward

    from vime_core import Prompt, Sample


class ReasoningGym:
    """Implements `vime_core.Reward`."""

    def __init__(self, config: ReasoningGymReward) -> None:
        self._between_tags = config.answer == "tags"

    def score(self, sample: Sample, prompt: Prompt) -> Verdict:
        """The verdict of the task's scorer; a prompt from elsewhere is scored by equality with its label."""
        answer = extract_answer(sample.response_text) if self._between_tags else sample.response_text.strip()
        if not answer:
            return Verdict(0.0, "unparseable", detail="there is no answer")
        problem = prompt.metadata.get("problem")
        if problem is None:
            score = float(answer == prompt.label)
        else:
            score = float(_scorer(problem["metadata"]["source_dataset"])(answer, problem))
        return Verdict(score, "correct" if score >= 1 else "wrong", extracted=answer[:200])


_scorer = lru_cache(reasoning_gym.get_score_answer_fn)
