"""The metrics of a run as curves, few enough for a page."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MAX_VALUES = 40_000
"""Most numbers on the page, about 25 bytes each: all curves together."""

MIN_STEPS = 100
"""Steps that are shown however many metrics there are."""

RARE = "eval/"
"""Metrics of some steps only: those steps are thinned out on their own, so that none of them vanishes by chance."""


@dataclass(frozen=True, slots=True)
class Curves:
    """Every metric over the steps that the page shows."""

    series: Mapping[str, Mapping[str, list[Any]]]
    """Name -> `steps` and `values`, of one length; None where a value was not finite."""
    recorded_steps: int
    """Records in metrics.jsonl."""
    shown_steps: int


def curves(records: Sequence[Mapping[str, Any]], max_values: int = MAX_VALUES) -> Curves:
    """Bring records into columns; when there are too many, every k-th is kept, and the last.

    Args:
        records: as `read_metrics` returns them.
        max_values: numbers that fit the page.
    """
    keys = list(dict.fromkeys(key for record in records for key in record if key != "step"))
    shown = _thinned(records, max(max_values // max(len(keys), 1), MIN_STEPS))
    series: dict[str, dict[str, list[Any]]] = {key: {"steps": [], "values": []} for key in keys}
    for record in shown:
        for key, value in record.items():
            if key != "step":
                series[key]["steps"].append(record["step"])
                series[key]["values"].append(value if math.isfinite(value) else None)
    return Curves({key: values for key, values in series.items() if values["steps"]}, len(records), len(shown))


def _thinned(records: Sequence[Mapping[str, Any]], most: int) -> list[Mapping[str, Any]]:
    """At most `most` records, half of them of steps with rare metrics, in order."""
    if len(records) <= most:
        return list(records)
    rare = [row for row, record in enumerate(records) if any(key.startswith(RARE) for key in record)]
    kept = {*_spread(rare, most // 2), *_spread(range(len(records)), most // 2)}
    return [records[row] for row in sorted(kept)]


def _spread(rows: Sequence[int], most: int) -> list[int]:
    """At most `most` rows at equal distances, the last one among them."""
    stride = max(math.ceil(len(rows) / most), 1)
    return list(rows[::-1][::stride])
