"""Rows of parquet and jsonl files, each with the place it was read from."""

from __future__ import annotations

import glob
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vime_core.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterator

PARQUET_BATCH_ROWS = 8192


@dataclass(frozen=True, slots=True)
class Place:
    """Where a row was read."""

    path: Path
    number: int
    """Line of a jsonl file, from 1; row of a parquet file, from 0."""

    def __str__(self) -> str:
        return f"{self.path} {'row' if self.path.suffix == '.parquet' else 'line'} {self.number}"


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a file."""

    place: Place
    values: dict[str, Any]


def find_files(pattern: str) -> list[Path]:
    """The files that a path or a glob pattern names, sorted.

    Raises:
        DataError: when there are none, or one is neither `.parquet` nor `.jsonl`.
    """
    literal = Path(pattern).expanduser()
    if literal.is_dir():
        raise DataError(f"{pattern} is a folder; name a file or a pattern such as '{pattern}/*.parquet'")
    matches = [literal] if literal.is_file() else sorted(map(Path, glob.glob(str(literal), recursive=True)))
    files = [path for path in matches if path.is_file()]
    if not files:
        raise DataError(f"{pattern}: {'is no file' if matches else 'no such file'}")
    for path in files:
        if path.suffix not in READERS:
            raise DataError(f"{path}: unknown extension {path.suffix!r}; data files are .parquet or .jsonl")
    return files


def read_rows(path: Path) -> Iterator[Row]:
    """All rows of one file, in order.

    Raises:
        DataError: when the file cannot be read; names the line where there is one.
    """
    return READERS[path.suffix](path)


def _read_parquet(path: Path) -> Iterator[Row]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    number = 0
    try:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=PARQUET_BATCH_ROWS):
                for values in batch.to_pylist():
                    yield Row(Place(path, number), values)
                    number += 1
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path}: cannot be read as parquet: {error}") from error


def _read_jsonl(path: Path) -> Iterator[Row]:
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    place = Place(path, number)
                    yield Row(place, _parse_line(place, line))
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error}") from error


def _parse_line(place: Place, line: bytes) -> dict[str, Any]:
    try:
        values = json.loads(line)
    except ValueError as error:  # also UnicodeDecodeError
        raise DataError(f"{place}: not JSON: {error}") from error
    if not isinstance(values, dict):
        raise DataError(f"{place}: a {type(values).__name__}, must be a JSON object")
    return values


READERS = {".parquet": _read_parquet, ".jsonl": _read_jsonl}
