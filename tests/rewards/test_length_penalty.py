"""The soft overlong punishment against the paper's three cases, in exact fractions."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vime_core.config.compose import compose
from vime_core.errors import ConfigError
from vime_core.rewards.length import LengthPenalty, overlong_penalty
from vime_core.rewards.length_config import LengthPenaltyConfig
from vime_core.testing.prompts import make_prompt
from vime_core.testing.samples import make_sample


def equation_13(length, l_max, l_cache):
    if length <= l_max - l_cache:
        return Fraction(0)
    if length <= l_max:
        return Fraction((l_max - l_cache) - length, l_cache)
    return Fraction(-1)


LIMITS = st.integers(1, 40_000).flatmap(lambda longest: st.tuples(st.just(longest), st.integers(1, longest)))


@given(st.integers(0, 60_000), LIMITS)
def test_it_is_equation_13(length, limits):
    assert overlong_penalty(length, *limits) == pytest.approx(float(equation_13(length, *limits)), abs=1e-12)


@given(LIMITS, st.integers(0, 60_000), st.integers(0, 60_000))
def test_a_longer_response_never_costs_less(limits, one, other):
    shorter, longer = sorted((one, other))
    assert overlong_penalty(longer, *limits) <= overlong_penalty(shorter, *limits)


@pytest.mark.parametrize(
    ("length", "penalty"), [(0, 0.0), (16_384, 0.0), (18_432, -0.5), (20_480, -1.0), (20_481, -1.0), (99_999, -1.0)]
)
def test_the_lengths_of_the_paper(length, penalty):
    assert overlong_penalty(length, 20_480, 4_096) == penalty


def score(config, length, mask=None):
    return LengthPenalty(config).score(make_sample(2, length, mask=mask), make_prompt())


def test_it_says_nothing_of_the_answer():
    short, long = (score(LengthPenaltyConfig(max_tokens=10, buffer_tokens=4), length) for length in (6, 8))
    assert (short.score, short.status, short.detail) == (0.0, "correct", "")
    assert str(short.score) == "0.0"
    assert (long.score, long.status, long.detail) == (-0.5, "correct", "8 tokens, 6 are free")


def test_tokens_that_the_policy_did_not_choose_are_free():
    config = LengthPenaltyConfig(max_tokens=10, buffer_tokens=5)
    assert score(config, 20, mask=[True] * 6 + [False] * 14).score == pytest.approx(-0.2)


def test_the_buffer_is_a_fifth_by_default():
    config = LengthPenaltyConfig(max_tokens=20_480)
    assert [score(config, length).score for length in (16_384, 18_432)] == [0.0, -0.5]
    assert score(LengthPenaltyConfig(max_tokens=1), 1).score == -1.0


SETTINGS = ["reward=[dapo_math,length_penalty]", "model.path=/m", "data.train=/d"]


def test_the_longest_response_is_that_of_the_rollout():
    config = compose([*SETTINGS, "rollout.max_response_tokens=500"]).config
    assert config.rewards["length_penalty"].max_tokens == 500
    config = compose([*SETTINGS, "rewards.length_penalty.max_tokens=400"]).config
    assert config.rewards["length_penalty"].max_tokens == 400


def test_a_buffer_that_is_longer_than_everything_is_refused():
    composed = compose([*SETTINGS, "rollout.max_response_tokens=500", "rewards.length_penalty.buffer_tokens=501"])
    with pytest.raises(ConfigError) as caught:
        _ = composed.config
    assert str(caught.value) == (
        "rewards.length_penalty.buffer_tokens=501 is more than rewards.length_penalty.max_tokens=500; lower it"
    )
