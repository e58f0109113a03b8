"""The filter `dynamic_sampling`."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vime_core import Group
    from vime_dynamic_sampling.config import DynamicSamplingConfig


class DynamicSampling:
    """Implements `vime_core.Filter`.

    DAPO (Yu et al. 2025, arXiv:2503.14476), equation 11, keeps a group of G responses o_i to a question with answer a
    when 0 < |{o_i | is_equivalent(a, o_i)}| < G: the advantages of all others are 0.
    """

    def __init__(self, config: DynamicSamplingConfig) -> None:
        self._by = config.by

    def keep(self, group: Group) -> str | None:
        """None to keep the group, else why it is dropped; samples that no reward could judge do not count."""
        verdicts = [sample.verdict for sample in group.judged if sample.verdict is not None]
        if len(verdicts) < 2:
            return "too_few_judged"
        if self._by == "score":
            return "equal_scores" if len({verdict.score for verdict in verdicts}) == 1 else None
        correct = sum(verdict.status == "correct" for verdict in verdicts)
        if correct == 0:
            return "none_correct"
        return "all_correct" if correct == len(verdicts) else None
