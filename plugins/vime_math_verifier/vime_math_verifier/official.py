r"""The published DAPO rule, for comparisons with published runs: what it scored, right or not.

Rewritten from the description of verl's `math_dapo` (Apache-2.0, Bytedance; normalisation after the appendix of
Minerva, https://arxiv.org/abs/2206.14858, as in EleutherAI's lm-evaluation-harness, MIT). It reads the last 300
characters, takes the last `Answer:` line and rewrites it and the reference by a list of replacements, or else takes
the last `\boxed{}` as it is, and compares the strings. The strict form compares the last box in the last 100
characters with the reference, both as they are.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

TAIL_CHARS = 300
STRICT_TAIL_CHARS = 100
NOT_FOUND = "[INVALID]"
_ANSWER = re.compile(r"answer\s*:\s*([^\n]+)", re.IGNORECASE)
_BOX = "\\boxed{"

_REPLACED = (
    ("an ", ""),
    ("a ", ""),
    (".$", "$"),
    ("\\$", ""),
    ("\\ ", ""),
    (" ", ""),
    ("mbox", "text"),
    (",\\text{and}", ","),
    ("\\text{and}", ","),
    ("\\text{m}", "\\text{}"),
)
_REMOVED = (
    *("square", "ways", "integers", "dollars", "mph", "inches", "hours", "km", "units", "\\ldots", "sue", "points"),
    *("feet", "minutes", "digits", "cents", "degrees", "cm", "gm", "pounds", "meters", "meals", "edges", "students"),
    *("childrentickets", "multiples", "\\text{s}", "\\text{.}", "\\text{\ns}", "\\text{}^2", "\\text{}^3"),
    *("\\text{\n}", "\\text{}", "\\mathrm{th}", "^\\circ", "^{\\circ}", "\\;", ",\\!", "{,}", '"', "\\dots"),
)
_UNWRAPPED = (
    (re.compile(r"(\\text\{)(.*?)(\})"), r"\2"),
    (re.compile(r"(\\textbf\{)(.*?)(\})"), r"\2"),
    (re.compile(r"(\\overline\{)(.*?)(\})"), r"\2"),
    (re.compile(r"(\\boxed\{)(.*)(\})"), r"\2"),
    (re.compile(r"(frac)([^{])(.)"), r"frac{\2}{\3}"),
    (re.compile(r"(sqrt)([^{])"), r"sqrt{\2}"),
)
_FIRST_MATH = re.compile(r"(.*?)(\$)(.*?)(\$)(.*)")


@dataclass(frozen=True, slots=True)
class OfficialScore:
    """What the rule says."""

    score: float
    """1 or -1."""
    correct: bool
    prediction: str | None
    """The answer as it was compared; None where the strict form finds no box."""


def official_score(response: str, ground_truth: str, *, strict_box: bool = False) -> OfficialScore:
    r"""Score as published.

    Args:
        response: Only its last 300 characters count.
        ground_truth: Normalised like the answer; compared as it is with `strict_box`.
        strict_box: Accept nothing but `\boxed{<ground truth>}` in the last 100 characters.
    """
    tail = response[-TAIL_CHARS:]
    if strict_box:
        prediction = _last_box(tail[-STRICT_TAIL_CHARS:])
        correct = prediction == ground_truth
    else:
        prediction = _answer(tail)
        correct = prediction == normalise(ground_truth)
    return OfficialScore(1.0 if correct else -1.0, correct, prediction)


def normalise(answer: str) -> str:
    """Rewrite an answer as the rule does before comparing."""
    answer = answer.rpartition("=")[2]
    for old, new in _REPLACED:
        answer = answer.replace(old, new)
    for old in _REMOVED:
        answer = answer.replace(old, "")
    answer = _FIRST_MATH.sub(r"$\3$", answer)
    for pattern, template in _UNWRAPPED:
        answer = pattern.sub(template, answer)
    answer = answer.replace("$", "")
    digits = answer.replace(",", "")
    return (digits if digits.isdigit() else answer).strip()


def _answer(text: str) -> str:
    answers = _ANSWER.findall(text)
    if answers:
        return normalise(answers[-1])
    box = _last_box(text)  # compared as it is: the rule normalises what follows `Answer:` only
    return NOT_FOUND if box is None else box


def _last_box(text: str) -> str | None:
    r"""The content of the last `\boxed{}`; None when there is none or its braces do not balance."""
    begin = text.rfind(_BOX)
    if begin < 0:
        return None
    depth = 0
    for index in range(begin, len(text)):
        depth += (text[index] == "{") - (text[index] == "}")
        if depth == 0 and text[index] == "}":
            return text[begin + len(_BOX) : index]
    return None
