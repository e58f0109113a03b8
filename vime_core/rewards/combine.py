"""Several rewards on one sample to one verdict."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from vime_core.types import SILENT_STATUSES, Verdict, VerdictStatus

if TYPE_CHECKING:
    from collections.abc import Sequence

_SEVERITY: tuple[VerdictStatus, ...] = ("correct", "wrong", "unparseable")


class Part(NamedTuple):
    """What one reward said."""

    name: str
    weight: float
    verdict: Verdict


def combine(parts: Sequence[Part]) -> Verdict:
    """One verdict from those of all rewards, whatever their order.

    The score is the weighted sum. The status is `timeout` or `error` when any is (the first one decides and the score
    is 0, for it means nothing), else the worst: `unparseable`, then `wrong`, then `correct`. A reward that only shapes
    the score therefore says `correct`. `extracted` is the first one there is.

    Args:
        parts: One or more; those after a silent one may be left out.
    """
    for part in parts:
        if part.verdict.status in SILENT_STATUSES:
            return Verdict(0.0, part.verdict.status, part.verdict.extracted, f"{part.name}: {part.verdict.detail}")
    if len(parts) == 1:
        [(_, weight, only)] = parts
        return only if weight == 1.0 else Verdict(weight * only.score, only.status, only.extracted, only.detail)
    return Verdict(
        score=sum(part.weight * part.verdict.score for part in parts),
        status=max((part.verdict.status for part in parts), key=_SEVERITY.index),
        extracted=next((part.verdict.extracted for part in parts if part.verdict.extracted is not None), None),
        detail="; ".join(f"{part.name}: {part.verdict.detail}" for part in parts if part.verdict.detail),
    )
