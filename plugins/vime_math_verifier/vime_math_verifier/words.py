"""Words beside a number, by what they do to its value. All lower case."""

from __future__ import annotations


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


ATTACHED_UNITS = _words(
    "cm mm km nm kg mg lb lbs oz ml cl ft yd mi in hr hrs min mins sec secs ms mph kph st nd rd th usd eur deg"
)
"""Units that may follow without a space; other letters there are factors, magnitudes or exponents."""

UNIT_LETTERS = _words("a m g s h l")
"""Single letters that may stand alone after a number (`34 dollars a day`); others are variables."""

EXPLAINING_WORDS = _words("since because as")
"""What follows such a word gives reasons and may hold other numbers."""

DOUBTS = _words(
    "wrong incorrect guess guessing unsure uncertain doubt doubtful tentative tentatively estimate estimated opposed "
    "approximation bound disproved mistaken untrue invalid"
)
"""Words that doubt a number even where reasons are given."""

HEDGES = DOUBTS | _words(
    "or not no nor about approximately approx around nearly almost roughly maybe perhaps possibly probably likely "
    "unlikely presumably supposedly least most more less fewer between rounded base never neither think believe "
    "suspect suppose assume assuming if unless might could may hopefully give false mistake error impossible cannot "
    "isn wasn aren doesn instead rather except earlier previously unverified unconfirmed rejected"
)
"""Words that deny a number or leave open which one is meant."""

_BOUNDS = _words(
    "minimum maximum max lower upper bounds limit up upward upwards above below under over exceeding exceeds beyond "
    "tops ish but however though although greater larger bigger smaller higher further"
)
_MAGNITUDES = _words(
    "half halves third thirds quarter quarters tenth tenths hundredth hundredths thousandth thousandths dozen dozens "
    "score hundred hundreds thousand thousands million millions billion billions trillion trillions"
)
_OPERATIONS = _words(
    "to plus minus times divided multiplied squared cubed factorial power root pi sqrt sin cos tan log ln exp mod "
    "choose"
)
_NUMBER_WORDS = _words(
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen twenty thirty forty fifty sixty seventy eighty ninety"
)

VALUE_WORDS = HEDGES | _BOUNDS | _MAGNITUDES | _OPERATIONS | _NUMBER_WORDS
"""Words after a number that change it, add another or leave it open."""
