"""vime's standard tests of filters, and examples of this one."""

import pytest

from vime_core import Group, Prompt
from vime_core.testing import FilterSuite
from vime_core.testing.samples import make_sample
from vime_dynamic_sampling.config import DynamicSamplingConfig
from vime_dynamic_sampling.filter import DynamicSampling


class TestByScore(FilterSuite):
    entry = "dynamic_sampling"


class TestByCorrectness(FilterSuite):
    entry = "dynamic_sampling"
    settings = {"by": "correct"}


RIGHT, SLOW, WRONG, LATE = (1.0, "correct"), (0.5, "correct"), (0.0, "wrong"), (9.0, "timeout")


@pytest.mark.parametrize(
    ("verdicts", "by_score", "by_correct"),
    [
        ([RIGHT, WRONG], None, None),
        ([RIGHT, SLOW], None, "all_correct"),
        ([RIGHT, RIGHT], "equal_scores", "all_correct"),
        ([WRONG, WRONG, (0.0, "unparseable")], "equal_scores", "none_correct"),
        ([(0.1, "wrong"), (0.1 + 1e-12, "wrong")], None, "none_correct"),
        ([RIGHT, RIGHT, LATE], "equal_scores", "all_correct"),
        ([RIGHT, LATE], "too_few_judged", "too_few_judged"),
        ([LATE, LATE], "too_few_judged", "too_few_judged"),
    ],
)
def test_what_is_dropped_and_why(verdicts, by_score, by_correct):
    samples = [make_sample(2, 3, index=i, score=score, status=status) for i, (score, status) in enumerate(verdicts)]
    group = Group("g", Prompt(id="p", messages=(), token_ids=(1,), label="1"), samples)
    assert DynamicSampling(DynamicSamplingConfig()).keep(group) == by_score
    assert DynamicSampling(DynamicSamplingConfig(by="correct")).keep(group) == by_correct
