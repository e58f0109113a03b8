r"""Answers that are not integers: an exact fast path, then the math-verify library on what is left.

Symbolic comparison may take for ever: run this where it can be killed, as the reward `math` does in the pool.
"""

from __future__ import annotations

import logging
import re
from fractions import Fraction

from vime_core.types import Verdict
from vime_math_verifier.contract import CORRECT_SCORE, verify
from vime_math_verifier.locate import Candidate, find_candidates
from vime_math_verifier.number import canonical_number
from vime_math_verifier.retraction import contradiction
from vime_math_verifier.words import ATTACHED_UNITS

_UNIT_WORDS = ATTACHED_UNITS | {"sqrt", "pi", "sin", "cos", "tan", "log", "ln", "exp", "infty", "inf", "oo"}
"""Words of two letters or more that an answer outside `\\text{}` may hold."""

MAX_CHARS = 1_000
MAX_DIGITS = 400
"""Longer numbers are left to the library."""

_WRAPPER = re.compile(r"(?:\$\$?(?P<dollar>[^$]+)\$\$?|\\\((?P<round>.+)\\\)|\\\[(?P<square>.+)\\\])[.,;]?", re.DOTALL)
_BOX = re.compile(r"\\(?:boxed|fbox) ?\{(?P<inside>.+)\}[.,;]?", re.DOTALL)
_MARKUP = re.compile(
    r"\*\*|__|`|\\(?:left|right|displaystyle|bigl?|bigr)(?![A-Za-z])|(?<!\\)\\[,;:! ]|<\|[^|>]{1,40}\|>"
)
_LARGE_FRACTION = re.compile(r"\\[dtc]frac")
_RATIO = re.compile(
    r"(?P<sign>[+-]?)(?:\\frac\{(?P<top>-?[0-9]+)\}\{(?P<under>-?[0-9]+)\}|(?P<n>-?[0-9]+)/(?P<d>[0-9]+))"
)
_NAMED = re.compile(r"[A-Za-z](?:_\{?[A-Za-z0-9]\}?)?(?:\([A-Za-z0-9]\))? ?=(?P<value>[^=]+)")
_TEXT = re.compile(r"\\(?:text|mathrm|textbf|mbox) ?\{[^{}]{0,60}\}")
_COMMAND = re.compile(r"\\[A-Za-z]+")
_ENVIRONMENT = re.compile(r"\\(?:begin|end)\{[a-z]{1,20}\*?\}(?:\{[lcr|]{1,10}\})?")
_WORD = re.compile(r"[A-Za-z]{2,}")
_BOUND = re.compile(r"[<>≤≥≠≈~±?…:]|\.\.|\\(?:approx|sim|geq?|leq?|neq?|pm|mp|lt|gt|not)(?![A-Za-z])")
_SPLIT = re.compile(r"[0-9][\s_]{1,20}[0-9]|\}\{(?!.*\})|[+\-*/^_\\]$")
_OPERATION = re.compile(r"\\[a-z]+|[0-9)}!][+\-*/^!]")
_UNUSUAL = re.compile(r"[^\x20-\x7eπ√∞∪²³°×·−]")  # noqa: RUF001
_OPENING = ("(", "[", "\\{", "|", "\\begin")


def verify_expression(
    response: str, ground_truth: str, *, wrong_score: float = 0.0, boxed_fallback: bool = True
) -> Verdict:
    """Compare the answer of a response with any mathematical object.

    Args:
        response: The whole response.
        ground_truth: A number, fraction, expression, set, interval, tuple or matrix, in LaTeX or plain.
        wrong_score: Score of `wrong` and `unparseable`; `correct` scores 1.
        boxed_fallback: Read the last box where nothing usable follows `Answer:`.

    Returns:
        As `vime_math_verifier.verify`; `error` when the ground truth cannot be read.
    """
    gold = _plain(ground_truth)
    is_integer = canonical_number(gold) is not None and "." not in gold
    if is_integer:
        verdict = verify(response, gold, wrong_score=wrong_score, boxed_fallback=boxed_fallback)
        if verdict.status != "unparseable" or "left open" in verdict.detail:
            return verdict
    reason = "no answer in the response"
    for candidate in find_candidates(response, boxed_fallback=boxed_fallback):
        answer = _plain(candidate.text)
        if not answer:
            continue
        reason = _doubt(candidate, answer)
        if not reason and is_integer and not _OPERATION.search(answer):
            reason = f"not one integer: {answer[:80]!r}"
        if not reason:
            return _compared(answer, gold, wrong_score)
    return Verdict(wrong_score, "unparseable", None, reason)


def _compared(answer: str, gold: str, wrong_score: float) -> Verdict:
    agrees = _agrees_exactly(answer, gold)
    if agrees is None:
        if _shape(answer) != _shape(gold):
            return Verdict(wrong_score, "wrong", answer, f"another kind of object than {gold[:80]}")
        agreement = _library_agrees(answer, gold)
        if isinstance(agreement, Verdict):
            return Verdict(
                wrong_score if agreement.status == "unparseable" else 0.0, agreement.status, None, agreement.detail
            )
        agrees = agreement
    if agrees:
        return Verdict(CORRECT_SCORE, "correct", answer)
    return Verdict(wrong_score, "wrong", answer, f"expected {gold[:80]}")


def _plain(text: str) -> str:
    """The text without delimiters, boxes, layout, and without the name in `x = ...`."""
    text = text.strip()
    for _ in range(4):
        wrapped = _WRAPPER.fullmatch(text)
        if wrapped:
            text = (wrapped["dollar"] or wrapped["round"] or wrapped["square"]).strip()
        boxed = _BOX.fullmatch(text)
        if boxed:
            text = boxed["inside"].strip()
        text = _MARKUP.sub("", text).strip()
    text = _LARGE_FRACTION.sub(r"\\frac", text.replace("\u2212", "-")).rstrip(".,; ")
    named = _NAMED.fullmatch(text)
    return named["value"].strip() if named else text


def _doubt(candidate: Candidate, answer: str) -> str:
    """Why the candidate is no answer; empty when it may be one."""
    if candidate.doubt:
        return candidate.doubt
    if len(answer) > MAX_CHARS:
        return f"longer than {MAX_CHARS} characters"
    words = {word.lower() for word in _WORD.findall(_COMMAND.sub(" ", _ENVIRONMENT.sub(" ", answer)))}
    if (
        words - _UNIT_WORDS
        or "=" in answer
        or _UNUSUAL.search(answer)
        or _BOUND.search(answer)
        or _SPLIT.search(answer)
    ):
        return f"not one object: {answer[:80]!r}"
    taken_back = contradiction(candidate.after, "")
    if (
        taken_back
        and not taken_back.lstrip("+-").replace(",", "").replace(".", "").isdigit()
        and "\\boxed" not in taken_back
    ):
        return f"left open: {taken_back[:80]!r}"
    return ""


def _agrees_exactly(answer: str, gold: str) -> bool | None:
    """Whether both are the same text or the same rational number; None when that does not settle it."""
    if answer.replace(" ", "") == gold.replace(" ", ""):
        return True
    left, right = _rational(answer), _rational(gold)
    return None if left is None or right is None else left == right


def _rational(text: str) -> Fraction | None:
    number = canonical_number(text)
    if number is not None and len(number) <= MAX_DIGITS:
        return Fraction(number)
    ratio = _RATIO.fullmatch(text.replace(" ", ""))
    if ratio is None or len(text) > MAX_DIGITS:
        return None
    under = int(ratio["under"] or ratio["d"])
    if under == 0:
        return None
    value = Fraction(int(ratio["top"] or ratio["n"]), under)
    return -value if ratio["sign"] == "-" else value


def _shape(text: str) -> tuple[str, str]:
    """The brackets around a text: they tell interval from tuple, open from closed, list from set."""
    text = _TEXT.sub("", text).replace(" ", "")
    if not text.startswith(_OPENING) or "," not in text or "\\cup" in text:
        return "", ""
    opening = next(bracket for bracket in _OPENING if text.startswith(bracket))
    return opening, text[-1:]


def _library_agrees(answer: str, gold: str) -> bool | Verdict:
    """What math-verify says, without its own time limits, which rest on signals."""
    from math_verify import parse
    from math_verify import verify as agree

    logging.getLogger("math_verify").setLevel(logging.CRITICAL)
    parsed_gold = parse(f"${gold}$", parsing_timeout=None)
    if not parsed_gold:
        return Verdict(0.0, "error", None, f"ground truth {gold[:80]!r} cannot be read")
    try:
        parsed = parse(f"${answer}$", parsing_timeout=None)
    except (ValueError, RecursionError) as error:
        return Verdict(0.0, "unparseable", None, f"cannot be read: {type(error).__name__}")
    if not parsed:
        return Verdict(0.0, "unparseable", None, f"cannot be read: {answer[:80]!r}")
    return bool(agree(parsed_gold, parsed, timeout_seconds=None))
