"""The samples on the page: every one of the newest steps, some of each earlier step, within a number of bytes."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from vime_core.report.embed import embedded

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

MAX_BYTES = 3_000_000
"""Of all samples, as they stand in the page."""

MIN_STEP_BYTES = 12_000
"""An earlier step gets at least so many; where they are too few for all, steps at equal distances are taken."""

MAX_MESSAGE = 3_000
MAX_RESPONSE = 6_000
MAX_NOTE = 500
"""Characters; of a longer text the middle is left out."""

PLACE_BYTES = 8
"""Room for a prompt's position, and what separates rows."""

READ_ROWS = 16
"""Rows that become Python values at one time."""

COLUMNS = [
    "prompt_id", "prompt_messages", "prompt_ids", "label", "data_source", "index", "response_text", "loss_mask",
    "advantages", "finish_reason", "score", "status", "extracted", "detail",
]  # fmt: skip
"""What is read of `vime_core.run.rollouts.SCHEMA`."""

FIELDS = (
    "step", "prompt", "index", "status", "score", "advantage", "tokens", "finish", "extracted", "detail", "response",
)  # fmt: skip
"""Values of a row of `Samples`. `prompt` is a position in `Samples.prompts`, `advantage` the mean over the tokens that
the policy chose; None: not trained on. Numbers that are not finite are None too."""


@dataclass(slots=True)
class Samples:
    """What the page shows, as plain JSON values."""

    prompts: list[dict[str, Any]] = field(default_factory=list)
    rows: list[list[Any]] = field(default_factory=list)
    """By step, newest first; see `FIELDS`."""
    recorded: int = 0
    """Samples in all files that can be read."""
    whole_steps: list[int] = field(default_factory=list)
    """Steps with every sample on the page."""
    part_steps: list[int] = field(default_factory=list)
    """Steps with some of their samples on the page."""
    absent_steps: list[int] = field(default_factory=list)
    """Steps with none."""
    shortened: int = 0
    """Texts of which the middle is left out."""
    unreadable: dict[str, str] = field(default_factory=dict)
    """Name of a file -> why it could not be read."""


@dataclass(frozen=True, slots=True)
class _Item:
    """One sample with its prompt."""

    key: tuple[str, str]
    """Equal for equal prompts."""
    prompt: dict[str, Any]
    prompt_cuts: int
    row: dict[str, Any]
    row_cuts: int


def collect_samples(folder: Path, max_bytes: int = MAX_BYTES) -> Samples:
    """Read the samples of the page from the rollouts of a run.

    Half of the bytes go to the newest steps, which are shown whole as long as they last, the rest to those before.

    Args:
        folder: `rollouts/` of a run; may be missing.
        max_bytes: of all samples.
    """
    samples = Samples()
    files = _files(folder)
    steps = [step for step in sorted(files, reverse=True) if _count(files[step], samples)]
    budget = _Budget(samples)
    whole = 0
    while whole < len(steps) and budget.add(list(_items(steps[whole], files[steps[whole]], samples)), max_bytes // 2):
        whole += 1
    samples.whole_steps = steps[:whole]
    earlier = steps[whole:]
    chosen = earlier[:: _stride(len(earlier), max_bytes - budget.used)]
    for number, step in enumerate(chosen):
        limit = budget.used + (max_bytes - budget.used) // (len(chosen) - number)
        if _add_some(budget, _items(step, files[step], samples), limit):
            samples.part_steps.append(step)
    samples.absent_steps = sorted(set(earlier) - set(samples.part_steps))
    return samples


class _Budget:
    """Adds samples while they fit, and counts their bytes."""

    def __init__(self, samples: Samples) -> None:
        self.used = 0
        self._samples = samples
        self._places: dict[tuple[str, str], int] = {}

    def add(self, items: Sequence[_Item], limit: int) -> bool:
        """Add all of them, or none when that would make more than `limit` bytes in all."""
        new = {item.key: item for item in items if item.key not in self._places}
        size = sum(_size(item.prompt) for item in new.values())
        size += sum(_size([*item.row.values()]) + PLACE_BYTES for item in items)
        if self.used + size > limit:
            return False
        self.used += size
        samples = self._samples
        for key, item in new.items():
            self._places[key] = len(samples.prompts)
            samples.prompts.append(item.prompt)
            samples.shortened += item.prompt_cuts
        for item in items:
            row = {**item.row, "prompt": self._places[item.key]}
            samples.rows.append([row[name] for name in FIELDS])
            samples.shortened += item.row_cuts
        return True


def _add_some(budget: _Budget, items: Iterator[_Item], limit: int) -> int:
    """Add samples in their order until one does not fit; returns how many were added."""
    added = 0
    for item in items:
        if not budget.add([item], limit):
            break
        added += 1
    return added


def _stride(steps: int, budget: int) -> int:
    """Every how many steps one is shown."""
    return max(-(-steps * MIN_STEP_BYTES // max(budget, 1)), 1)


def _files(folder: Path) -> dict[int, Path]:
    matches = ((re.fullmatch(r"step_(\d+)\.parquet", file.name), file) for file in folder.glob("step_*.parquet"))
    return {int(match[1]): file for match, file in matches if match}


def _count(file: Path, samples: Samples) -> int:
    """Samples in a file; 0 for one that cannot be read."""
    try:
        rows = int(pq.read_metadata(file).num_rows)
    except (OSError, pa.ArrowException) as error:
        samples.unreadable[file.name] = str(error).splitlines()[0]
        return 0
    samples.recorded += rows
    return rows


def _items(step: int, file: Path, samples: Samples) -> Iterator[_Item]:
    try:
        table = pq.read_table(file, columns=COLUMNS)
    except (OSError, pa.ArrowException) as error:
        samples.unreadable[file.name] = str(error).splitlines()[0]
        return
    for batch in table.to_batches(max_chunksize=READ_ROWS):
        for row in batch.to_pylist():
            of_prompt, of_row = _Shortener(), _Shortener()
            prompt, values = _prompt(row, of_prompt), _row(step, row, of_row)
            yield _Item((row["prompt_id"], row["prompt_messages"]), prompt, of_prompt.cuts, values, of_row.cuts)


class _Shortener:
    """Leaves out the middle of long texts - answers stand at the end - and counts how often it did."""

    def __init__(self) -> None:
        self.cuts = 0

    def __call__(self, text: str | None, most: int) -> str | None:
        """The text with about `most` characters at most."""
        cut = len(text) - most if text is not None else 0
        if text is None or cut <= 0:
            return text
        self.cuts += 1
        head = most // 2
        return f"{text[:head]}\n[... {cut:,} characters left out ...]\n{text[head + cut :]}"


def _prompt(row: Mapping[str, Any], shorten: _Shortener) -> dict[str, Any]:
    messages = [
        {"role": str(message.get("role", "")), "content": shorten(str(message.get("content", "")), MAX_MESSAGE)}
        for message in json.loads(row["prompt_messages"])
    ]
    return {
        "id": shorten(row["prompt_id"], MAX_NOTE),
        "source": shorten(row["data_source"], MAX_NOTE),
        "label": shorten(row["label"], MAX_NOTE),
        "tokens": len(row["prompt_ids"]),
        "messages": messages,
    }


def _row(step: int, row: Mapping[str, Any], shorten: _Shortener) -> dict[str, Any]:
    return {
        "step": step,
        "index": row["index"],
        "status": row["status"],
        "score": _finite(row["score"]),
        "advantage": _mean_advantage(row["advantages"], row["loss_mask"]),
        "tokens": len(row["loss_mask"]),
        "finish": row["finish_reason"],
        "extracted": shorten(row["extracted"], MAX_NOTE),
        "detail": shorten(row["detail"], MAX_NOTE),
        "response": shorten(row["response_text"], MAX_RESPONSE),
    }


def _mean_advantage(advantages: Sequence[float] | None, mask: Sequence[bool]) -> float | None:
    if advantages is None:
        return None
    chosen = [advantage for advantage, kept in zip(advantages, mask, strict=True) if kept]
    return _finite(sum(chosen) / len(chosen)) if chosen else None


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _size(value: Any) -> int:
    return len(embedded(value).encode())
