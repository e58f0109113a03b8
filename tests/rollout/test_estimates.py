"""pass@k against the count of all subsets, and confidence intervals against how often they hold."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vime_core.rollout.estimates import mean_of_shares, pass_at_k


@st.composite
def outcomes(draw):
    """Which samples are correct, and k."""
    samples = draw(st.lists(st.booleans(), min_size=1, max_size=9))
    return samples, draw(st.integers(1, len(samples)))


@given(outcomes())
def test_pass_at_k_is_the_share_of_subsets_with_a_correct_sample(drawn):
    samples, k = drawn
    subsets = list(itertools.combinations(samples, k))
    expected = Fraction(sum(any(subset) for subset in subsets), len(subsets))
    assert pass_at_k(len(samples), sum(samples), k) == pytest.approx(float(expected), abs=1e-12)


@given(st.integers(1, 60), st.data())
def test_pass_at_k_is_the_product_of_the_paper(samples, data):
    """Chen et al. 2021, figure 3: 1 - prod(1 - k / i for i from n - c + 1 to n), and 1 when n - c < k."""
    correct = data.draw(st.integers(0, samples))
    k = data.draw(st.integers(1, samples))
    factors = [1 - k / i for i in range(samples - correct + 1, samples + 1)]
    expected = 1.0 if samples - correct < k else 1 - math.prod(factors)
    assert pass_at_k(samples, correct, k) == pytest.approx(expected, abs=1e-9)


def test_pass_at_k_has_no_bias():
    """The mean over binomial draws is the probability itself; the naive 1 - (1 - c/n)^k is below it."""
    rate, samples, k = Fraction(3, 10), 8, 4
    chances = [math.comb(samples, c) * rate**c * (1 - rate) ** (samples - c) for c in range(samples + 1)]
    mean = sum(chance * Fraction(pass_at_k(samples, c, k)) for c, chance in enumerate(chances))
    assert float(mean) == pytest.approx(float(1 - (1 - rate) ** k), abs=1e-12)


def test_pass_at_one_is_the_accuracy_and_large_numbers_do_not_overflow():
    assert pass_at_k(10, 3, 1) == pytest.approx(0.3)
    assert pass_at_k(5, 0, 5) == 0.0
    assert pass_at_k(5, 1, 5) == 1.0
    assert 0.99 < pass_at_k(10_000, 100, 5000) <= 1.0


@pytest.mark.parametrize(("samples", "correct", "k"), [(4, 5, 1), (4, 1, 5), (4, 1, 0), (4, -1, 1)])
def test_numbers_that_do_not_fit_are_refused(samples, correct, k):
    with pytest.raises(ValueError, match=f"pass@{k} of {samples} samples"):
        pass_at_k(samples, correct, k)


def test_the_interval_is_that_of_the_mean():
    mean = mean_of_shares([0.0, 1.0, 1.0, 0.0])
    half = 1.959963984540054 * np.sqrt(1 / 3) / 2
    assert (mean.value, mean.prompts) == (0.5, 4)
    assert (mean.low, mean.high) == (0.0, 1.0)  # 0.5 -+ 0.57
    inner = mean_of_shares([0.25, 0.75, 0.75, 0.25])
    assert (inner.low, inner.high) == pytest.approx((0.5 - half / 2, 0.5 + half / 2))


def test_one_prompt_has_no_interval():
    mean = mean_of_shares([0.5])
    assert (mean.value, mean.low, mean.high) == (0.5, None, None)


def test_the_interval_holds_as_often_as_it_says():
    rng = np.random.default_rng(0)
    held = 0
    for _ in range(400):
        skills = rng.beta(2, 3, 100)  # mean 0.4
        mean = mean_of_shares(list(rng.binomial(4, skills) / 4))
        held += mean.low <= 0.4 <= mean.high
    assert 0.92 < held / 400 < 0.98
