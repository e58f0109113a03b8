"""How often a reward is wrong, measured on responses whose truth is known.

An audit file is JSON lines; a row has `response`, `ground_truth`, `correct` (whether the response deserves `correct`),
and may have `id`, `kind` (its class), `reason` and `status` (the exact status that is expected). Long texts may be
written as `parts`, pairs of a text and how often it is repeated, instead of `response`.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from vime_core.errors import DataError
from vime_core.types import SILENT_STATUSES, Prompt, Sample

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from vime_core.rewards.pool import RewardPool
    from vime_core.types import Verdict

NORMAL_95 = 1.959963984540054
"""The 97.5 % quantile of the standard normal distribution."""

_CHUNK = 512


@dataclass(frozen=True, slots=True)
class AuditRow:
    """One response with its truth."""

    id: str
    response: str
    ground_truth: str
    correct: bool
    kind: str = ""
    status: str | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Failure:
    """A row that the reward judged wrongly, or not at all."""

    row: AuditRow
    verdict: Verdict
    what: str
    """`false positive`, `false negative`, `other status` or the silent status."""


@dataclass(frozen=True, slots=True)
class Rate:
    """A share with its 95 % confidence interval."""

    count: int
    total: int

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's score interval (Wilson 1927, JASA 22:209); (0, 1) of nothing."""
        if self.total == 0:
            return 0.0, 1.0
        share, square = self.count / self.total, NORMAL_95**2
        scale = 1 + square / self.total
        centre = (share + square / (2 * self.total)) / scale
        spread = NORMAL_95 * math.sqrt(share * (1 - share) / self.total + square / (4 * self.total**2)) / scale
        return max(0.0, centre - spread), min(1.0, centre + spread)

    def __str__(self) -> str:
        low, high = self.interval
        share = self.count / self.total if self.total else 0.0
        return f"{self.count} of {self.total} = {share:.3%} (95 %: {low:.3%} to {high:.3%})"


@dataclass(slots=True)
class AuditReport:
    """What a reward said of all rows."""

    reward: str
    counts: Counter[str] = field(default_factory=Counter)
    """Rows by status."""
    correct: int = 0
    """Rows that deserve `correct` and were judged."""
    incorrect: int = 0
    """The others that were judged."""
    failures: list[Failure] = field(default_factory=list)

    def add(self, row: AuditRow, verdict: Verdict) -> None:
        """Count one row."""
        self.counts[verdict.status] += 1
        what = _fault(row, verdict)
        if verdict.status not in SILENT_STATUSES:
            self.correct += row.correct
            self.incorrect += not row.correct
        if what is not None:
            self.failures.append(Failure(row, verdict, what))

    @property
    def false_positives(self) -> Rate:
        """Share of the rows that do not deserve `correct` and got it."""
        return Rate(self._count("false positive"), self.incorrect)

    @property
    def false_negatives(self) -> Rate:
        """Share of the rows that deserve `correct` and got another verdict."""
        return Rate(self._count("false negative"), self.correct)

    @property
    def silent(self) -> Rate:
        """Share of all rows that were not judged: `timeout` and `error`, which the other rates leave out."""
        return Rate(sum(self.counts[status] for status in SILENT_STATUSES), self.counts.total())

    def by_kind(self) -> Counter[str]:
        """Failures in each class."""
        return Counter(failure.row.kind for failure in self.failures)

    def _count(self, what: str) -> int:
        return sum(failure.what == what for failure in self.failures)


def read_audit(path: Path) -> list[AuditRow]:
    """The rows of an audit file.

    Raises:
        DataError: names file, line and what is wrong with it, also when there is no row.
    """
    try:
        with path.open(encoding="utf-8-sig") as file:
            rows = [_row(line, f"{path}, line {number}") for number, line in enumerate(file, 1) if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"cannot read {path}: {error}; give a file of JSON lines") from error
    if not rows:
        raise DataError(f"{path} has no rows; give a file of JSON lines")
    return rows


def audit(pool: RewardPool, name: str, rows: Sequence[AuditRow]) -> AuditReport:
    """Ask the pool's reward about every row.

    Args:
        pool: Started, with one reward.
        name: Of the reward, for the report.
        rows: What to ask about.
    """
    report = AuditReport(name)
    for start in range(0, len(rows), _CHUNK):
        chunk = rows[start : start + _CHUNK]
        for row, verdict in zip(chunk, asyncio.run(_ask(pool, chunk)), strict=True):
            report.add(row, verdict)
    return report


async def _ask(pool: RewardPool, rows: Iterable[AuditRow]) -> list[Verdict]:
    answers = await asyncio.gather(*(pool.score([_sample(row)], _prompt(row)) for row in rows))
    return [verdict for [verdict] in answers]


def _fault(row: AuditRow, verdict: Verdict) -> str | None:
    if row.status is not None and verdict.status == row.status:
        return None
    if verdict.status in SILENT_STATUSES:
        return verdict.status
    if (verdict.status == "correct") is not row.correct:
        return "false negative" if row.correct else "false positive"
    return None if row.status is None else "other status"


def _row(line: str, place: str) -> AuditRow:
    try:
        content = json.loads(line)
    except json.JSONDecodeError as error:
        raise DataError(f"{place} is not JSON: {error.msg}") from error
    if not isinstance(content, dict):
        raise DataError(f"{place} is not a JSON object")
    response = _response(content, place)
    for key, kind in (("ground_truth", str), ("correct", bool)):
        if not isinstance(content.get(key), kind):
            raise DataError(f"{place}: {key} must be given, as {'text' if kind is str else 'true or false'}")
    return AuditRow(
        id=str(content.get("id", place.rpartition(" ")[2])),
        response=response,
        ground_truth=content["ground_truth"],
        correct=content["correct"],
        kind=str(content.get("kind", "")),
        status=content.get("status"),
        reason=str(content.get("reason", "")),
    )


def _response(content: dict[str, Any], place: str) -> str:
    if isinstance(content.get("response"), str):
        return str(content["response"])
    try:
        return "".join(str(text) * int(times) for text, times in content["parts"])
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"{place}: response must be given, as text, or parts, as pairs of text and number") from error


def _sample(row: AuditRow) -> Sample:
    no_ids = np.zeros(0, np.int64)
    return Sample(
        prompt_id=row.id,
        group_id=row.id,
        index=0,
        prompt_ids=no_ids,
        response_ids=no_ids,
        loss_mask=np.zeros(0, np.bool_),
        rollout_logprobs=np.zeros(0, np.float32),
        finish_reason="stop",
        policy_versions=(),
        response_text=row.response,
    )


def _prompt(row: AuditRow) -> Prompt:
    return Prompt(id=row.id, messages=(), token_ids=(), label=row.ground_truth, data_source="audit")
