"""Properties: every dress keeps the number, nothing makes one out of two, no input raises or takes long."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vime_core.types import VERDICT_STATUSES
from vime_math_verifier import verify
from vime_math_verifier.number import canonical_number

integers = st.integers(min_value=-(10**30), max_value=10**30)
writings = st.sampled_from(["{}", "{:,}", "{}.0", "{:,}.00"])
wrappers = st.lists(
    st.sampled_from(["{}", "**{}**", "${}$", r"\boxed{{{}}}", r"\text{{{}}}", r"\({}\)", "`{}`", r"\mathbf{{{}}}"]),
    max_size=4,
)
before = st.sampled_from(["", "We add 2 and 3.\n", "Answer: 1\n", "<think>\nAnswer: 2\n</think>\n", "x" * 500 + "\n"])
after = st.sampled_from(["", ".", " apples", "</s>", "<|im_end|>\n", "\n\nDone: 12 of 13.", " (since 1 + 1 = 2)", "%"])
arbitrary = st.text(max_size=200) | st.text(alphabet="Answer: 0123456789,.=+-$\\{}()[]boxed*_ \n", max_size=200)


@settings(deadline=None)
@given(integers, writings, wrappers, before, after)
def test_every_dress_keeps_the_number(number, writing, layers, prefix, suffix):
    text = writing.format(number)
    for layer in layers:
        text = layer.format(text)
    verdict = verify(f"{prefix}Answer: {text}{suffix}", str(number))
    assert (verdict.status, verdict.extracted) == ("correct", str(number))


@settings(deadline=None)
@given(integers, integers)
def test_another_integer_is_wrong(number, other):
    verdict = verify(f"Answer: {other}", str(number))
    assert verdict.status == ("correct" if number == other else "wrong")


@settings(deadline=None)
@given(
    st.integers(0, 10**6), st.integers(0, 10**6), st.sampled_from([" ", ", ", " or ", " and ", "; ", "/", " = ", "}{"])
)
def test_two_numbers_are_no_answer(first, second, joint):
    if first == second and joint == " = ":
        return
    verdict = verify(f"Answer: {first}{joint}{second}", str(first))
    assert verdict.status == "unparseable"


@settings(deadline=None)
@given(arbitrary, arbitrary)
def test_any_text_gets_a_verdict(response, ground_truth):
    assert verify(response, ground_truth).status in VERDICT_STATUSES
    assert verify("Answer: " + response, "34").status in ("correct", "wrong", "unparseable")


@settings(deadline=None)
@given(st.integers(0, 10**9), st.integers(0, 3), st.integers(0, 3), st.sampled_from(["", "+", "-"]))
def test_canonical_form_is_that_of_python(number, zeros, fraction_zeros, sign):
    text = f"{sign}{'0' * zeros}{number}" + (f".{'0' * fraction_zeros}" if fraction_zeros else "")
    assert canonical_number(text) == str(int(f"{sign}{number}"))


ADVERSARIAL = [
    "answer" + " " * 200_000,
    "answer " * 30_000,
    "Answer:" * 30_000,
    "Answer:\n" * 30_000,
    "Answer: " + "1," * 100_000,
    "Answer: " + "1,234" * 40_000,
    "Answer: " + "(" * 200_000,
    "Answer: " + "$" * 990,
    "Answer: " + "x+" * 499,
    "Answer: " + "a is " * 199 + "1",
    "Answer: " + "=" * 990,
    "Answer: 1" + " %" * 490,
    "Answer: 1" + ".," * 490,
    "Answer: 1 " + "a-" * 490,
    "\\boxed{" * 30_000,
    "\\boxed{" + "{" * 200_000 + "}" * 200_000,
    "<|" * 100_000,
    "<|" + "a" * 200_000,
    "0" * 1_000_000,
]


@pytest.mark.timeout(60)
@pytest.mark.parametrize("index", range(len(ADVERSARIAL)))
def test_long_and_repetitive_texts_end(index):
    assert verify(ADVERSARIAL[index], "34").status in ("wrong", "unparseable")


def test_only_the_end_of_an_endless_response_is_read():
    assert verify("Answer: 34\n" + "x" * 300_000, "34").status == "unparseable"
    assert verify("x" * 300_000 + "\nAnswer: 34\n" + "x" * 100_000, "34").status == "correct"
