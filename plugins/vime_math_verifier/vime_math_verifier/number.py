r"""Reading one exact number from an answer in Markdown or LaTeX dress.

Every pattern is a sequence of bounded or disjoint repetitions, so that matching takes linear time.
"""

from __future__ import annotations

import re
import sys
import unicodedata
from fractions import Fraction

from vime_math_verifier.arithmetic import evaluate
from vime_math_verifier.words import ATTACHED_UNITS, DOUBTS, EXPLAINING_WORDS, HEDGES, UNIT_LETTERS, VALUE_WORDS

MAX_CHARS = 1_000
"""A longer answer is refused unread."""

NUMBER = re.compile(r"[+-]?(?:[1-9][0-9]{0,2}(?:,[0-9]{3})+|[0-9]+)(?:\.[0-9]+)?(?![0-9])")

_CHARACTERS = str.maketrans(
    {
        **dict.fromkeys(
            "\u2212\u2013\u2010\u2011\u2012\ufe63\uff0d", "-"
        ),  # minus signs and hyphens that stand for one
        **dict.fromkeys("\u00a0\u2002\u2003\u2005\u2007\u3000\t\r", " "),
        **dict.fromkeys("\u200b\u200c\u200d\u2060\ufeff", None),  # zero width
        **dict.fromkeys("\u3002\uff0e", "."),
        "\uff0c": ",",
        **{char: str(unicodedata.decimal(char)) for char in map(chr, range(0x80, sys.maxunicode)) if char.isdecimal()},
    }
)
_THOUSANDS = re.compile(r"(?<=[0-9])(?:\{,\}|\{\\,\}|,\\!|\\,|[\u2009\u202f\u00a0])(?=[0-9]{3}(?![0-9]))")
_TIMES = re.compile(r"(?<=[0-9]) ?(?<!\*)\*(?!\*) ?(?=[0-9])")
_HTML = re.compile(r"</?(?:b|i|u|em|strong|p|code|span|center|br ?/?)>|&nbsp;", re.IGNORECASE)
_SIGN_GROUP = re.compile(r"\{([+-])\}(?=[0-9])")
_DEGREES = re.compile(r"(?:\^ ?\{? ?\\circ ?\}?|\\degree(?![A-Za-z])|°)(?: ?(?:\\(?:text|mathrm) ?\{)?[CFK]\b)?|℃|℉")
_COLOUR = re.compile(r"\\(?:text)?color ?\{[A-Za-z]{1,20}\}|\\(?:begin|end) ?\{[A-Za-z]{1,20}\*?\}")
_LATEX_DRESS = re.compile(
    r"\\(?:(?:boxed|fbox|mbox|text|textbf|textit|textrm|mathrm|mathbf|mathit|mathsf|texttt|textsf|emph|underline|boldsymbol|bm|displaystyle|bf|rm|left|right|quad"
    r"|qquad)(?![A-Za-z])|[,;:! ()\[\]\\])"
)
_ESCAPED = re.compile(r"\\([$%#&_])")
_CURRENCY_BETWEEN_DIGITS = re.compile(r"(?<=[0-9])[$€£¥₹]+(?=[0-9])")
_CURRENCY = re.compile(r"[$€£¥₹]|\b(?:USD|EUR|GBP|INR|Rs\.?) ?(?=[0-9])")
_TIE = re.compile(r"(?<=[A-Za-z0-9])~|~(?=[A-Za-z])")
_MARKDOWN_AND_QUOTES = re.compile(r"[*_`#{}\"'“”‘’]")  # noqa: RUF001
_EQUALS = re.compile(r"=|\b(?:is|are|equals)\b", re.IGNORECASE)
_OPENING = re.compile(r"(?:[(\[] ?){1,4}")
_CLOSING_OF = {"(": ")", "[": "]"}
_POWER_OF_UNIT = re.compile(r"(?<=[A-Za-z])(?: ?\^ ?-?[123]| ?[²³])")
_NAME_TOKEN = re.compile(r"[A-Za-z]+|[0-9]+|[^A-Za-z0-9\s]")
_WORD = re.compile(r"[^\W\d_]+")


def canonical_number(text: str) -> str | None:
    """A decimal number without sign of zero, leading or trailing zeros and separators; None for anything else."""
    if text.isascii() and text.isdigit() and len(text) <= MAX_CHARS:
        return text.lstrip("0") or "0"
    text = text.translate(_CHARACTERS).strip()
    return _canonical(text) if len(text) <= MAX_CHARS and NUMBER.fullmatch(text) else None


def parse_answer(text: str) -> str | None:
    """The one number that an answer states, in canonical form; None when there is none or more than one reading.

    Accepts a number followed by units or an explanation, alone or as the last side of an equation whose other sides
    are names or have the same value.
    """
    if len(text) > MAX_CHARS:
        return None
    plain = text.strip()
    if plain.isascii() and plain.isdigit():
        return plain.lstrip("0") or "0"
    text = undress(text)
    value = _leading_number(text)
    if value is not None:
        return value
    *others, last = _EQUALS.split(text)
    value = _leading_number(last.strip(" :")) if others else None
    if others and not others[0].strip():
        del others[0]
    if value is None or not all(_is_name(side) or _has_value(side, value) for side in others):
        return None
    return value


def is_dress(line: str) -> bool:
    """Whether nothing is left of a line without its Markdown and LaTeX delimiters."""
    return len(line) <= MAX_CHARS and not line.strip().isalnum() and not undress(line)


def undress(text: str) -> str:
    """The text without Markdown and LaTeX around its words and numbers, and with plain characters for special ones."""
    text = _THOUSANDS.sub(",", text).translate(_CHARACTERS)
    text = _HTML.sub(" ", _TIMES.sub(" × ", text))  # noqa: RUF001
    text = _SIGN_GROUP.sub(r"\1", text)
    text = _DEGREES.sub(" ", text)
    text = _COLOUR.sub(" ", text)
    text = _LATEX_DRESS.sub(" ", text)
    text = _ESCAPED.sub(r"\1", text)
    text = _CURRENCY.sub("", _CURRENCY_BETWEEN_DIGITS.sub(" ", text))
    text = _TIE.sub(" ", text)
    return " ".join(_MARKDOWN_AND_QUOTES.sub(" ", text).split())


def _leading_number(text: str) -> str | None:
    """The number that `text` starts with, when what follows does not change its value."""
    opening = _OPENING.match(text)
    start = opening.end() if opening else 0
    number = NUMBER.match(text, start)
    if number is None:
        return None
    end = number.end()
    if opening:
        closing = "".join(_CLOSING_OF[char] for char in reversed(opening[0]) if char != " ")
        rest = text[end:].lstrip()
        while closing and rest.startswith(closing[0]):
            closing, rest = closing[1:], rest[1:].lstrip() if len(closing) > 1 else rest[1:]
        if closing:
            return None
        end = len(text) - len(rest)
    if not _is_harmless(text[end:]):
        return None
    return _canonical(number[0])


def _canonical(number: str) -> str:
    whole, _, fraction = number.replace(",", "").lstrip("+-").partition(".")
    whole, fraction = whole.lstrip("0") or "0", fraction.rstrip("0")
    digits = f"{whole}.{fraction}" if fraction else whole
    return f"-{digits}" if number.startswith("-") and digits != "0" else digits


def _is_harmless(tail: str) -> bool:
    """Whether the text right after a number leaves its value alone: punctuation, units, an explanation."""
    attached = _WORD.match(tail)
    if attached:
        if attached[0].lower() not in ATTACHED_UNITS:
            return False
        tail = tail[attached.end() :]
    if tail and (tail[0] not in " %.,;" or (tail[0] in ".,;" and tail[1:2] not in ("", " "))):
        return False
    if tail.lstrip(" %").startswith(("..", "…")):
        return False
    rest = tail.lstrip(" %.,;")
    words = [word.lower() for word in _WORD.findall(rest)]
    if rest.startswith("("):
        return rest[1:].lstrip()[:1].isalpha() and _is_explanation(words)
    if words and words[0] in EXPLAINING_WORDS and rest[0].isalpha():
        return _is_explanation(words)
    rest = _POWER_OF_UNIT.sub("", rest)
    if not all(char.isalpha() or char in " .,;:()/-" for char in rest):
        return False
    return all(word not in VALUE_WORDS and (len(word) > 1 or word in UNIT_LETTERS) for word in words)


def _is_explanation(words: list[str]) -> bool:
    """Whether the words after a number give a reason or a remark, without doubting it."""
    doubts = DOUBTS if words[0] in EXPLAINING_WORDS else HEDGES
    return doubts.isdisjoint(words)


def _has_value(side: str, value: str) -> bool:
    """Whether a side of an equation is the number, or arithmetic that comes to it."""
    if canonical_number(side) == value:
        return True
    result = evaluate(side.strip())
    return result is not None and result == Fraction(value)


def _is_name(side: str) -> bool:
    """Whether a side of an equation names a quantity, such as `x`, `m + n`, `f(3)`, `a_10` or `the total`."""
    previous = ""
    for token in _NAME_TOKEN.findall(side):
        if token.isalpha():
            valid = not previous.isdigit() and token.lower() not in HEDGES
        elif token.isascii() and token.isdigit():
            valid = previous in ("(", ",") or (previous.isalpha() and len(previous) == 1)
        elif token == ",":
            valid = previous.isdigit()
        else:
            valid = token == "|" or (token in ("(", ")", "+") and previous != "")
        if not valid:
            return False
        previous = token
    return previous not in ("", "+")
