"""The reward `math`: agreement rules, case by case, and the library inside the pool."""

import asyncio
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vime_core.config.schema import RewardPoolConfig
from vime_core.rewards.pool import RewardPool, RewardSpec
from vime_core.testing.samples import make_sample
from vime_core.types import VERDICT_STATUSES, Prompt
from vime_math_verifier.expression import verify_expression
from vime_math_verifier.hooks import vime_rewards

CASES = [
    (r"Answer: \frac{1}{2}", "1/2", "correct", "the same rational"),
    (r"Answer: $\dfrac{2}{4}$", r"\frac{1}{2}", "correct", "the same rational"),
    ("Answer: 0.5", r"\frac{1}{2}", "correct", "a finite decimal"),
    ("Answer: 0.333", r"\frac{1}{3}", "wrong", "a rounded decimal"),
    ("Answer: **-3/4**", r"-\frac{3}{4}", "correct", "sign and Markdown"),
    (r"Answer: \frac{1}{3}", "1/2", "wrong", "another rational"),
    ("Answer: 2.50", "2.5", "correct", "trailing zero"),
    (r"Answer: $2\sqrt{2}$", r"\sqrt{8}", "correct", "the same real"),
    (r"Answer: $2\sqrt{3}$", r"\sqrt{8}", "wrong", "another real"),
    (r"\boxed{(x+1)^2}", "x^2+2x+1", "correct", "the same polynomial"),
    (r"\boxed{(x+2)^2}", "x^2+2x+1", "wrong", "another polynomial"),
    (r"Answer: \{2, 1\}", r"\{1,2\}", "correct", "sets have no order"),
    (r"Answer: \{1, 3\}", r"\{1,2\}", "wrong", "another set"),
    ("Answer: (1, 2)", "(1,2)", "correct", "tuple"),
    ("Answer: (2, 1)", "(1,2)", "wrong", "tuples have an order"),
    ("Answer: 1, 2", "(1,2)", "wrong", "a list is no tuple"),
    ("Answer: [1, 2)", "[1,2)", "correct", "interval"),
    ("Answer: [1, 2]", "[1,2)", "wrong", "closed is not half-open"),
    ("Answer: (1, 2)", "[1,2)", "wrong", "open is not half-open"),
    (
        r"Answer: \begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}",
        r"\begin{pmatrix}1&2\\3&4\end{pmatrix}",
        "correct",
        "matrix",
    ),
    (
        r"Answer: \begin{pmatrix} 1 & 2 \\ 3 & 5 \end{pmatrix}",
        r"\begin{pmatrix}1&2\\3&4\end{pmatrix}",
        "wrong",
        "matrix",
    ),
    (r"Answer: 5.5\text{ cm}", "5.5", "correct", "a unit on one side"),
    ("Answer: x = 1/2", "1/2", "correct", "a named value"),
    ("Answer: 34", "34", "correct", "integer"),
    (r"Answer: \frac{68}{2}", "34", "correct", "an expression with that value"),
    ("Answer: 35", "34", "wrong", "integer"),
    ("Answer: 34 or 35", "34", "unparseable", "two numbers"),
    ("Answer: 35 = 34", "34", "unparseable", "sides differ"),
    ("Answer: 1/2 or 1/3", "1/2", "unparseable", "two fractions"),
    ("Answer: about 1/2", "1/2", "unparseable", "a hedge"),
    ("Answer: not 1/2", "1/2", "unparseable", "a denial"),
    ("Answer: 1/2\nThat is wrong.", "1/2", "unparseable", "taken back"),
    ("<think>Answer: 1/2</think>", "1/2", "unparseable", "only in the thinking"),
    ("Answer: 1/0", "1/2", "wrong", "no number"),
    ("no answer", "1/2", "unparseable", "no marker"),
]


@pytest.mark.parametrize(("response", "gold", "status", "why"), CASES)
def test_agreement(response, gold, status, why):
    verdict = verify_expression(response, gold, wrong_score=-1.0)
    assert verdict.status == status, (why, verdict)
    assert verdict.score == (1.0 if status == "correct" else -1.0)


def test_a_reference_that_cannot_be_read_is_an_error():
    assert verify_expression("Answer: 3", "").status == "error"


def test_the_fast_path_needs_no_library():
    code = (
        "import sys; from vime_math_verifier.expression import verify_expression as v;"
        r"print(v('Answer: \\frac{2}{4}', '0.5').status, v('Answer: 34', '34').status, v('Answer: 1/3', '1/2').status,"
        "'sympy' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.split() == ["correct", "correct", "wrong", "False"]


@settings(deadline=None)
@given(st.integers(-999, 999), st.integers(1, 999), st.integers(1, 9))
def test_equal_fractions_agree_and_others_do_not(top, under, factor):
    response = rf"Answer: \frac{{{top * factor}}}{{{under * factor}}}"
    assert verify_expression(response, f"{top}/{under}").status == "correct"
    assert verify_expression(response, f"{top + 1}/{under}").status == "wrong"


@settings(deadline=None, max_examples=60)
@given(st.text(max_size=60) | st.text(alphabet="0123456789/.,=+-$\\{}()[] x", max_size=30))
def test_any_text_gets_a_verdict(text):
    assert verify_expression(text, "1/2").status in VERDICT_STATUSES
    assert verify_expression("\\boxed{" + text, "1/2").status in VERDICT_STATUSES


@pytest.mark.timeout(240)
def test_nasty_expressions_are_killed_and_the_others_are_right():
    entry = next(entry for entry in vime_rewards() if entry.name == "math")
    responses = ["Answer: 9^{9^{9^{9^{9}}}}", r"Answer: $2\sqrt{2}$", "Answer: 3^{7^{9^{9^9}}}!", r"Answer: \sqrt{8}"]
    samples = [make_sample(1, 1, index=index) for index in range(len(responses))]
    for sample, response in zip(samples, responses, strict=True):
        sample.response_text = response
    spec = RewardSpec(entry.name, entry.factory, entry.config())
    with RewardPool([spec], config=RewardPoolConfig(time_limit_s=5.0)) as pool:
        verdicts = asyncio.run(pool.score(samples, Prompt("p", (), (1,), r"\sqrt{8}")))
    assert [verdicts[1].status, verdicts[3].status] == ["correct", "correct"]
    assert all(verdict.status in ("timeout", "error", "wrong", "unparseable") for verdict in verdicts[::2])
