"""The standard tests of rewards."""

from vime_core.testing import RewardSuite


class TestConformance(RewardSuite):
    entry = "dapo_math"
    label = "34"
    examples = (
        ("Answer: 34", "34", "correct"),
        ("Answer: 35", "34", "wrong"),
        ("I do not know", "34", "unparseable"),
        ("Answer: 34", "thirty-four", "error"),
    )


class TestPaperScores(RewardSuite):
    entry = "dapo_math"
    settings = {"wrong_score": -1.0, "boxed_fallback": False}


class TestMath(RewardSuite):
    entry = "math"
    label = "34"
    examples = (("\\boxed{34}", "34", "correct"), ("\\boxed{35}", "34", "wrong"))


class TestMathVerify(RewardSuite):
    entry = "math_verify"
    label = "34"
