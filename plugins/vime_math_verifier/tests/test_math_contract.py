"""The answer contract, case by case. Ground truth is 34 unless a case says otherwise."""

import pytest

from vime_core.types import Verdict
from vime_math_verifier import verify

# Forms that published DAPO verifiers read wrongly: response, expected status, why.
PUBLISHED_PROBES = [
    ("**Answer:** 34", "correct", "Markdown around the marker"),
    ("Answer: **34**", "correct", "Markdown around the number"),
    ("Answer: 34.", "correct", "full stop"),
    ("Answer: 34.0", "correct", "the same integer"),
    (r"Answer: \(34\)", "correct", "LaTeX delimiters"),
    ("Answer: 34 (since 2 * 17 = 34)", "correct", "an explanation in parentheses"),
    ("Answer: 34 (since …)", "correct", "an explanation in parentheses"),
    (r"Answer: 34\%", "correct", "a unit, escaped"),
    ("Answer: 34</s>", "correct", "special token"),
    ("Answer: 34<|im_end|>", "correct", "special token"),
    ("Answer: 34\n" + "We double check. " * 100, "correct", "much text after the answer"),
    (r"The result is \boxed{34}.", "correct", "the fallback"),
    ("Answer: 034", "correct", "leading zero"),
    ("Answer: 35 = 34", "unparseable", "the sides differ"),
    ("Answer: 3 4", "unparseable", "two numbers"),
    ("Answer: 3,4", "unparseable", "two numbers; no thousands separator"),
    ("34, 35", "unparseable", "no marker"),
    ("Answer: 34, 35", "unparseable", "two numbers"),
    ("Answer: 34 or 35", "unparseable", "two numbers"),
    ("I think it is 34", "unparseable", "no marker"),
    ("Answer: 34 dollars and 5 cents", "unparseable", "two numbers"),
    ("Answer: thirty-four", "unparseable", "no digits"),
]

ACCEPTED = [
    "Answer: 34",
    "answer: 34",
    "ANSWER : 34",
    "Answer:34",
    "Answer:\n34",
    "Answer:\n\n34\n",
    "Answer： 34",  # noqa: RUF001
    "Final Answer: 34",
    "### Final Answer:\n34",
    "**Final Answer**: 34",
    "__Answer:__ 34",
    "**Answer: 34**",
    "*Answer*: `34`",
    r"\textbf{Answer:} 34",
    r"$\text{Answer: } 34$",
    "Answer: $34$",
    "Answer: $$34$$",
    "Answer:\n$$\n34\n$$",
    "Answer:\n\\[\n\\boxed{34}\n\\]",
    r"Answer: \[34\]",
    r"Answer: $\boxed{34}$.",
    r"\boxed{Answer: 34}",
    r"Answer: \mathrm{34}",
    r"Answer: \text{34 dollars}",
    r"Answer: \left(34\right)",
    "Answer: (34)",
    "Answer: [34]",
    'Answer: "34"',
    r"Answer: \$34",
    "Answer: $34",
    "Answer: €34",
    "Answer: +34",
    "Answer: 34%",
    "Answer: 34 percent",
    "Answer: 34°",
    r"Answer: $34^\circ$",
    r"Answer: 34^{\circ}",
    "Answer: 34 degrees",
    "Answer: 34 square units.",
    "Answer: 34 cm^2",
    "Answer: 34 cm²",
    "Answer: 34cm",
    r"Answer: 34~\text{cm}",
    r"Answer: $34\,\text{m}$",
    "Answer: 34 km/h",
    "Answer: 34 dollars a day",
    "Answer: 34th",
    "Answer: 34,",
    "Answer: 34;",
    "Answer: 34. Done.",
    "Answer: 34, as required",
    "Answer: 34 because 30 + 4 = 34",
    "Answer: x = 34",
    "Answer: $x=34$",
    "Answer: m + n = 34",
    "Answer: $f(3) = 34$",
    "Answer: $a_{10} = 34$",
    "Answer: x = y = 34",
    "Answer: 34 = 34",
    "Answer: 33 + 1 = 34",
    "Answer: The total is 34 dollars.",
    "Answer: The answer is: 34",
    "Answer: 12\nAnswer: 34",
    "The answer: 12. No, wait.\nAnswer: 34",
    "Answer: ３４",  # noqa: RUF001
    "Answer:\u200b34",
    "Answer:\u00a034",
    "Answer: 34\r\n",
    "Answer: 0000034.000",
    "Answer: <answer>34</answer>",
    "Answer: 34<|endoftext|><|endoftext|>",
    "Answer:\nWe add both sums.\n\\boxed{34}",
    r"First \boxed{12}, then \boxed{34}",
    r"It is \boxed{\text{34}}",
    r"It is \boxed{ 34 \text{ apples} }",
]

UNPARSEABLE = [
    "",
    "34",
    "Answer",
    "Answer:",
    "Answer: ",
    "Answer: $Answer",
    "Answer: unknown",
    "The answer is 34",
    "Nonanswer: 34",
    "Answer: 34 and 35",
    "Answer: 34/1",
    r"Answer: \frac{68}{2}",
    r"Answer: 34\frac{1}{2}",
    "Answer: 34½",
    "Answer: 34 1/2",
    "Answer: 3^4",
    "Answer: 34^2",
    "Answer: 34²",
    "Answer: 34!",
    "Answer: 34?",
    "Answer: 34...",
    "Answer: 34…",
    "Answer: 3.4e1",
    "Answer: 34e0",
    "Answer: 34k",
    "Answer: 34x",
    "Answer: 34 x",
    r"Answer: 34\pi",
    "Answer: 34 pi",
    "Answer: 34 thousand",
    "Answer: 34 million dollars",
    "Answer: 34 squared",
    "Answer: 34 or so",
    "Answer: 34 or thirty-five",
    "Answer: 34 to thirty-six",
    "Answer: 34 (or 35)",
    "Answer: 34 (35)",
    "Answer: 34 (base 8)",
    "Answer: 34 (approximately)",
    "Answer: 34_8",
    "Answer: 34:1",
    "Answer: 12:34",
    "Answer: 30-34",
    "Answer: 30 – 34",  # noqa: RUF001
    "Answer: ±34",
    "Answer: +-34",
    "Answer: --34",
    "Answer: - 34",
    "Answer: ~34",
    "Answer: about 34",
    "Answer: > 34",
    r"Answer: \approx 34",
    r"Answer: x \neq 34",
    "Answer: x != 34",
    "Answer: x >= 34",
    "Answer: 35 is not 34",
    "Answer: not 34",
    "Answer: 34 is not correct",
    "Answer: 2x = 34",
    "Answer: x + 1 = 34",
    "Answer: x^2 = 34",
    "Answer: x² = 34",
    "Answer: x = 3 and y = 34",
    "Answer: x = 3, y = 34",
    "Answer: (35) = 34",
    "Answer: I think that 35 is 34",
    "Answer: 33 + 2 = 34",
    "Answer: (3, 4)",
    "Answer: (3)4",
    "Answer: {3}{4}",
    r"Answer: \boxed{3}\boxed{4}",
    "Answer: $3$$4$",
    "Answer: **3**4",
    "Answer: 3_4",
    "Answer: 3'4",
    "Answer: 3*4",
    "Answer: 0,034",
    "Answer: 34,00",
    "Answer: (C) 34",
    "Answer: 34 out of 50",
    "Answer: 34" + " " * 1000 + "35",
    "Answer: 3 4\n\\boxed{34}",
    "\\boxed{34}\nAnswer: unknown",
    r"It is \boxed{34 or 35}",
    r"It is \boxed{34",
    r"It is \boxed34",
    r"It is \boxed{}",
]

OTHER_GOLDS = [
    ("Answer: −3", "-3", "correct"),  # noqa: RUF001
    ("Answer: –3", "-3", "correct"),  # noqa: RUF001
    ("Answer: $-3$", "-3", "correct"),
    (r"Answer: -\$3", "-3", "correct"),
    ("Answer: 3", "-3", "wrong"),
    ("Answer: -3", "3", "wrong"),
    ("Answer: -0", "0", "correct"),
    ("Answer: 1,234", "1234", "correct"),
    ("Answer: 1,234,567.", "1234567", "correct"),
    ("Answer: 1234", "1,234", "correct"),
    (r"Answer: $1{,}234$", "1234", "correct"),
    (r"Answer: 1\,234", "1234", "correct"),
    ("Answer: 1\u202f234", "1234", "correct"),
    ("Answer: 1 234", "1234", "unparseable"),
    ("Answer: 1,2345", "12345", "unparseable"),
    ("Answer: 1,23,456", "123456", "unparseable"),
    ("Answer: 1.234", "1234", "wrong"),
    ("Answer: 1,234.5", "1234", "wrong"),
    ("Answer: 34", "34.0", "correct"),
    ("Answer: 34", " 34\n", "correct"),
    ("Answer: " + "9" * 300, "9" * 300, "correct"),
    ("Answer: " + "9" * 300, "9" * 299 + "8", "wrong"),
]


@pytest.mark.parametrize(("response", "status", "why"), PUBLISHED_PROBES)
def test_published_probes(response, status, why):
    assert verify(response, "34").status == status, why


@pytest.mark.parametrize("response", ACCEPTED)
def test_accepted(response):
    assert verify(response, "34") == Verdict(1.0, "correct", "34")
    assert verify(response, "35") == Verdict(0.0, "wrong", "34", "expected 35")


@pytest.mark.parametrize("response", UNPARSEABLE)
def test_unparseable(response):
    verdict = verify(response, "34", wrong_score=-1.0)
    assert (verdict.score, verdict.status, verdict.extracted) == (-1.0, "unparseable", None)
    assert verdict.detail


@pytest.mark.parametrize(("response", "ground_truth", "status"), OTHER_GOLDS)
def test_other_golds(response, ground_truth, status):
    assert verify(response, ground_truth).status == status


@pytest.mark.parametrize("ground_truth", ["", "thirty", "34.5", "1/2", "x", "3 4", "\\boxed{34}", "9" * 2000])
def test_a_ground_truth_that_is_no_integer_is_the_datas_fault(ground_truth):
    verdict = verify("Answer: 34", ground_truth)
    assert verdict.status == "error"
    assert "is not an integer" in verdict.detail


@pytest.mark.parametrize("ground_truth", [34, "34", "34.0"])
def test_a_ground_truth_may_be_a_number(ground_truth):
    assert verify("Answer: 34", ground_truth).status == "correct"
    assert verify("Answer: 35", ground_truth).status == "wrong"


@pytest.mark.parametrize(
    ("response", "ground_truth", "detail"),
    [
        ("Answer: 34", None, "ground truth 'None' is not an integer"),
        ("Answer: 34", 34.0, "ground truth '34.0' is not an integer"),
        ("Answer: 1", True, "ground truth 'True' is not an integer"),
        (None, "34", "the response is NoneType, not text"),
        (b"Answer: 34", "34", "the response is bytes, not text"),
    ],
)
def test_what_is_no_text_is_an_error_and_raises_nothing(response, ground_truth, detail):
    assert verify(response, ground_truth) == Verdict(0.0, "error", None, detail)


def test_wrong_score_is_for_wrong_and_unparseable_only():
    scores = [verify(text, "34", wrong_score=-1.0).score for text in ("Answer: 34", "Answer: 35", "no")]
    assert scores == [1.0, -1.0, -1.0]


def test_boxed_fallback_can_be_turned_off():
    response = r"The result is \boxed{34}."
    assert verify(response, "34", boxed_fallback=True).status == "correct"
    assert verify(response, "34", boxed_fallback=False).status == "unparseable"


def test_details_name_the_cause():
    assert verify("hello", "34").detail == "no 'Answer:' in the response and no \\boxed{}"
    assert verify("Answer: 3 4", "34").detail == "not one integer: ' 3 4'"
