r"""The exact value of a sum of products of integers, such as `30 + 4` or `2 \times 17`."""

from __future__ import annotations

import re
from fractions import Fraction

MAX_CHARS = 200
"""A longer text is not evaluated."""

_NUMBER = r"(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)"
_OPERATOR = r"(?:×|÷|·|/|\\times|\\cdot|\\div)"  # noqa: RUF001
_PRODUCT = rf"{_NUMBER}(?: ?{_OPERATOR} ?{_NUMBER})*"
_SUM = re.compile(rf"[+-]?{_PRODUCT}(?: ?[+-] ?{_PRODUCT})*")
_TERM = re.compile(rf"([+-]?) ?({_PRODUCT})")
_FACTOR = re.compile(rf"({_OPERATOR}?) ?({_NUMBER})")
_DIVISIONS = frozenset({"/", "÷", "\\div"})


def evaluate(text: str) -> Fraction | None:
    """The value; None when `text` is anything else, too long, or divides by zero."""
    if len(text) > MAX_CHARS or not _SUM.fullmatch(text):
        return None
    try:
        return sum(
            (-_product(term) if sign == "-" else _product(term) for sign, term in _TERM.findall(text)), Fraction()
        )
    except ZeroDivisionError:
        return None


def _product(text: str) -> Fraction:
    value = Fraction(1)
    for operator, number in _FACTOR.findall(text):
        factor = int(number.replace(",", ""))
        value = value / factor if operator in _DIVISIONS else value * factor
    return value
