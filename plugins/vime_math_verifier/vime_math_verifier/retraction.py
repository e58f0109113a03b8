"""Whether the text around an answer takes it back, doubts it, or gives another one.

Every pattern is a sequence of bounded or disjoint repetitions, so that searching takes linear time.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from vime_math_verifier.number import NUMBER, canonical_number, parse_answer, undress

if TYPE_CHECKING:
    from collections.abc import Iterable

NEAR_CHARS = 60
"""How much of the text before an answer is looked at."""

_DENIED = re.compile(
    r"(?:\b(?:wrong|incorrect|not|never|previous|earlier|former|false|mistaken|isn't|wasn't)"
    r"(?:\s{1,3}(?:the|my|an?|final|correct|true|right|actual|is|be)){0,3})[\s*_#:$\\({]{0,8}$",
    re.IGNORECASE,
)
_OPEN = re.compile(
    r"(?:\b(?:or|about|approximately|approx\.?|around|nearly|almost|roughly|maybe|perhaps|possibly|probably|than|"
    r"at least|at most|least|most|up to|between|guess|exceeds?|under|over|below|above)|[<>≤≥≠≈±~^/+\-×]|"  # noqa: RUF001
    r"\\(?:neq?|approx|sim|geq?|leq?|lt|gt|pm|times|cdot|not)|!=|=\s?\\not)[\s*_$({]{0,8}$",
    re.IGNORECASE,
)
_GOES_ON = re.compile(
    r"[\s$*_)}]{0,8}(?:\\?[,;]?[\s$*_]{0,4}(?:or\b|and\s{0,3}[$*({]{0,3}(?:\\boxed|[0-9])|\\(?:boxed|times|cdot|pm|frac))"
    r"|[\^_/+×?0-9]|-\s?[0-9]|(?:hundred|thousand|million|billion|dozen|percent points)\b)",  # noqa: RUF001
    re.IGNORECASE,
)
_TAKEN_BACK = re.compile(
    r"(?:^|[\n.!?])[\s*_>\-]{0,8}(?:wait\b|no[,.;:!\u2014]|hm+\b|oops\b|sorry,|correction\b|scratch that\b|hold on\b"
    r"|actually,|on second thought|let me reconsider|my mistake\b|apologies\b)"
    r"|\b(?:that|this|it|answer|result|value|above|number|which|\d{1,30})(?:'s|\s(?:is|was|seems|looks|must be|isn't|"
    r"wasn't|cannot be|can't be))\s(?:[a-z]{1,12}\s)?"
    r"(?:wrong|incorrect|not (?:correct|right|true|the (?:correct |right |final )?answer)|false|mistaken|invalid"
    r"|correct\?|(?:an? )?(?:error|mistake|guess)\b)"
    r"|\b(?:isn't|wasn't|is not|was not|cannot be|can't be) "
    r"(?:correct|right|true|the (?:correct |right |final )?answer)\b"
    r"|^[\s$*_.)}]{0,8}(?:is|was|seems|looks|must be) "
    r"(?:wrong|incorrect|not\b|false|invalid|(?:an? )?(?:mistake|guess)\b)"
    r"|\bi (?:made|have made|was|am|may be|might be|could be) (?:an? )?"
    r"(?:mistake|error|wrong|mistaken|not sure|unsure)\b"
    r"|\bi(?:'m| am) (?:not (?:sure|certain|confident)|unsure|guessing)\b"
    r"|\bdisregard\b|\bignore (?:that|the above|this)\b",
    re.IGNORECASE,
)
_RESTATED = re.compile(
    r"\b(?:answer|result|solution|total|it|that)\s{0,3}(?:is|was|=|becomes|should(?:\s(?:actually|really|instead))? be|"
    r"should have been|equals|must be)\s{0,3}"
    r"(?:(?:actually|really|therefore|thus|instead|in fact|now|then|simply|just|exactly|rather)[\s,]{1,3}){0,2}"
    r"[\s$*_`({\\\[]{0,8}(?:(?:boxed|text|mathbf|textbf|mathrm)\{)?(?P<number>[+\-\u2212]?[0-9][0-9,]{0,40}(?:\.[0-9]{1,20})?)",
    re.IGNORECASE,
)
_PLAIN_ANSWER = re.compile(r"\banswer\b", re.IGNORECASE)
_BOX = re.compile(r"\\boxed\s{0,3}\{([^{}]{0,200})\}")


def is_denied_before(prefix: str) -> bool:
    """Whether the words right before `Answer:` say that what follows is not the answer."""
    return bool(_DENIED.search(prefix[-NEAR_CHARS:]))


def is_open_before(prefix: str) -> bool:
    r"""Whether what stands right before a `\boxed{}` denies it, bounds it or makes it a part of something."""
    near = prefix[-NEAR_CHARS:]
    return bool(_DENIED.search(near) or _OPEN.search(near))


def is_open_after(suffix: str) -> bool:
    r"""Whether a `\boxed{}` is followed by another value or an operation."""
    return bool(_GOES_ON.match(suffix))


def contradiction(after: str, answer: str) -> str | None:
    """The text in `after` that takes `answer` back or gives another number as the answer; None when there is none.

    Args:
        after: What follows the answer, from the end of its line or box.
        answer: In canonical form.
    """
    if not after or after.isspace():
        return None
    taken_back = _TAKEN_BACK.search(after)
    if taken_back:
        return taken_back[0].strip()
    for other in _others(after):
        if canonical_number(other) not in (None, answer):
            return other
    for box in _BOX.finditer(after):
        if parse_answer(box[1]) != answer:
            return box[0]
    line = _first_line(after)
    value = canonical_number(line)
    return line if value not in (None, answer) else None


def _others(after: str) -> Iterable[str]:
    for match in _RESTATED.finditer(after):
        # "It is 5 minutes later" and "the total is 40 for both" speak of other things than the answer.
        if _PLAIN_ANSWER.match(match[0]) or "should" in match[0].lower():
            yield match["number"].rstrip(",")


def _first_line(after: str) -> str:
    """The first line that is more than dress, without its dress."""
    for line in after[:400].split("\n")[:6]:
        plain = undress(line).removeprefix("or ").removeprefix("and ")
        if plain:
            return plain.rstrip(".") if NUMBER.match(plain) else ""
    return ""
