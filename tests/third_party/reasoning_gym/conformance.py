"""vime's standard tests of both components, and examples; becomes tests/test_conformance.py of the package."""

from vime_core.testing import PromptSourceSuite, RewardSuite


class TestPrompts(PromptSourceSuite):
    entry = "reasoning_gym"
    settings = {"size": 20}


class TestReward(RewardSuite):
    entry = "reasoning_gym"
    label = "42"
    examples = (
        ("Six times seven: <answer>42</answer>", "42", "correct"),
        ("Six times seven: <answer>41</answer>", "42", "wrong"),
        ("Six times seven is 42", "42", "unparseable"),
    )
