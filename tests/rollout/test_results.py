"""Groups of verdicts to the numbers of an evaluation."""

from types import SimpleNamespace

import numpy as np
import pytest

from vime_core.errors import ConfigError, RewardError
from vime_core.rollout.results import choose_ks, eval_result
from vime_core.types import Group, Verdict

STATUS = {"c": "correct", "w": "wrong", "u": "unparseable", "t": "timeout"}


@pytest.fixture
def groups(make_prompt):
    """`groups("cw", "tt")`: one group a word, one verdict a letter."""

    def sample(letter, index):
        verdict = Verdict(float(letter == "c"), STATUS[letter])
        return SimpleNamespace(
            verdict=verdict,
            is_judged=letter != "t",
            loss_mask=np.ones(index + 1, dtype=bool),
            finish_reason="length" if letter == "u" else "stop",
        )

    def make(*words):
        return [
            Group(word, make_prompt(number), [sample(letter, index) for index, letter in enumerate(word)])
            for number, word in enumerate(words)
        ]

    return make


def test_numbers_of_a_set(groups):
    result = eval_result("math", groups("cwww", "ccuu", "wwww"), 4, [1, 2, 4])
    assert (result.name, result.prompts, result.samples_per_prompt) == ("math", 3, 4)
    assert result.accuracy.value == pytest.approx((0.25 + 0.5 + 0) / 3)
    assert result.pass_at[1].value == pytest.approx(result.accuracy.value)
    assert result.pass_at[2].value == pytest.approx((1 / 2 + 5 / 6 + 0) / 3)
    assert result.pass_at[4].value == pytest.approx(2 / 3)
    assert result.verdicts == {"correct": 3 / 12, "wrong": 7 / 12, "unparseable": 2 / 12, "timeout": 0, "error": 0}
    assert result.response_len_mean == 2.5
    assert result.truncated_ratio == pytest.approx(2 / 12)


def test_samples_without_a_verdict_on_the_policy_do_not_count(groups):
    result = eval_result("math", groups("cwtt", "tttt", "cccc"), 4, [1, 4])
    assert result.accuracy.value == pytest.approx((0.5 + 1) / 2)
    assert (result.pass_at[4].value, result.pass_at[4].prompts) == (1.0, 1)
    assert result.verdicts["timeout"] == 0.5
    with pytest.raises(RewardError, match="none of 4 samples got a verdict on the policy"):
        eval_result("math", groups("tt", "tt"), 2, [1])


def test_a_k_that_no_prompt_has_samples_for_is_left_out(groups):
    assert set(eval_result("math", groups("ct"), 2, [1, 2]).pass_at) == {1}


def test_plain_values(groups):
    plain = eval_result("math", groups("c"), 1, [1]).plain()
    assert plain["accuracy"] == {"value": 1.0, "prompts": 1, "low": None, "high": None}


def test_the_k_of_pass_at_k():
    assert choose_ks(1, []) == [1]
    assert choose_ks(8, []) == [1, 2, 4, 8]
    assert choose_ks(10, []) == [1, 2, 4, 8, 10]
    assert choose_ks(10, [5, 1, 5]) == [1, 5]
    with pytest.raises(ConfigError, match="pass@11 needs at least 11 samples of a prompt, and there are 10"):
        choose_ks(10, [1, 11])
