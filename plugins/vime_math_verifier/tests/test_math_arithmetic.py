"""Sums of products of integers against Python's own evaluation."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vime_math_verifier import verify
from vime_math_verifier.arithmetic import evaluate

NUMBERS = st.integers(0, 10**6)
OPERATORS = st.sampled_from(["+", "-", "×", "·", "\\times", "\\cdot", "/", "÷"])  # noqa: RUF001
PYTHON = {"×": "*", "·": "*", "\\times": "*", "\\cdot": "*", "÷": "/"}  # noqa: RUF001


@given(first=NUMBERS, rest=st.lists(st.tuples(OPERATORS, NUMBERS, st.sampled_from(["", " "])), max_size=6))
def test_as_python_says(first, rest):
    text = str(first) + "".join(f"{gap}{operator} {number}" for operator, number, gap in rest)
    code = f"F({first})" + "".join(f" {PYTHON.get(operator, operator)} F({number})" for operator, number, _ in rest)
    try:
        expected = eval(code, {"F": Fraction})
    except ZeroDivisionError:
        expected = None
    assert evaluate(text) == expected


@pytest.mark.parametrize("text", ["", "x", "3 4", "1 +", "+ + 1", "2^5", "1.5 + 2", "(1 + 2)", "1/0", "1+" * 200 + "1"])
def test_nothing_else_is_evaluated(text):
    assert evaluate(text) is None


@pytest.mark.parametrize(
    "answer",
    [
        *("30 + 4 = 34", "2 * 17 = 34", "$2 \\times 17 = 34$", "68/2=34", "40 - 6 = 34 apples", "17 + 17 is 34"),
        *("$m+n = 7+27 = 34$", "1,034 - 1,000 = 34", "x = 2 · 17 = 34", "There are 34 ways", "USD 34", "Rs. 34"),
    ],
)
def test_a_true_equation_is_its_value(answer):
    assert verify(f"Answer: {answer}", "34").status == "correct"
    assert verify(f"Answer: {answer}", "35").status == "wrong"


@pytest.mark.parametrize(
    "answer",
    [
        *("30 + 5 = 34", "2 * 17 = 35", "30 + 4", "34 = 30 + 4", "2 ** 17 = 34", "30 + 4 = 34 or 35", "34/0 = 34"),
        *("30 + 4 = 3 4", "30 + x = 34", "34.5 - 0.5 = 34", "There are about 34", "They are not 34"),
    ],
)
def test_a_false_or_open_one_is_none(answer):
    assert verify(f"Answer: {answer}", "34").status == "unparseable"
