"""The DAPO answer contract: one integer after the last `Answer:`, compared exactly.

The contract is that of DAPO (https://arxiv.org/abs/2503.14476), whose prompts end "The last line of your response
should be of the form Answer: $Answer". What counts as that form is wider here than in its published rule, and what
counts as an answer is stricter: see the tables in the package's README.
"""

from __future__ import annotations

from vime_core.types import Verdict
from vime_math_verifier.locate import find_candidates
from vime_math_verifier.number import MAX_CHARS, canonical_number, parse_answer
from vime_math_verifier.retraction import contradiction

CORRECT_SCORE = 1.0

_LARGEST = 10**MAX_CHARS


def verify(response: str, ground_truth: str | int, *, wrong_score: float = 0.0, boxed_fallback: bool = True) -> Verdict:
    r"""Compare the answer of a response with an integer.

    Runs in time linear in the length of the response.

    Args:
        response: The whole response; special tokens may be left in it.
        ground_truth: An integer; as text also with a sign, thousands separators, or `.0`.
        wrong_score: Score of `wrong` and `unparseable`; `correct` scores 1.
        boxed_fallback: Read the last `\boxed{}` where no number follows `Answer:`.

    Returns:
        `correct`, `wrong`, `unparseable` (no answer, or more than one reading) or `error` (the ground truth is not an
        integer or the response is not text, which is the caller's fault).
    """
    gold = _integer(ground_truth)
    if gold is None:
        return Verdict(0.0, "error", None, f"ground truth {str(ground_truth)[:80]!r} is not an integer")
    if not isinstance(response, str):
        return Verdict(0.0, "error", None, f"the response is {type(response).__name__}, not text")
    reason = "no 'Answer:' in the response" + (" and no \\boxed{}" if boxed_fallback else "")
    for candidate in find_candidates(response, boxed_fallback=boxed_fallback):
        answer = parse_answer(candidate.text)
        if answer is not None:
            break
        reason = f"not one integer: {candidate.text[:80]!r}"
    else:
        return Verdict(wrong_score, "unparseable", None, reason)
    if answer != gold:
        return Verdict(wrong_score, "wrong", answer, f"expected {gold}")
    doubt = candidate.doubt or contradiction(candidate.after, answer)
    if doubt:
        return Verdict(wrong_score, "unparseable", None, f"{answer} is left open: {doubt[:80]!r}")
    return Verdict(CORRECT_SCORE, "correct", answer)


def _integer(ground_truth: object) -> str | None:
    """In canonical form; None for what is no integer."""
    if isinstance(ground_truth, int) and not isinstance(ground_truth, bool) and abs(ground_truth) < _LARGEST:
        return str(ground_truth)
    gold = canonical_number(ground_truth) if isinstance(ground_truth, str) else None
    return None if gold is None or "." in gold else gold
