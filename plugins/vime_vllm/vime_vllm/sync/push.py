"""What all pushes have in common: the run's deadline, the account of what was moved, the tensors left over."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from vime_core.types import PushReport

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from vime_vllm.sync.wire import TensorRecord

DEADLINE_VARIABLE = "VIME_PUSH_DEADLINE_S"
DEFAULT_DEADLINE_S = 600.0
NO_WEIGHTS = "weight push: the trainer has no weights"
NOT_CONNECTED = "weight push: no engines are connected"


def push_deadline() -> float:
    """Seconds for each message of a push, from the environment."""
    return float(os.environ.get(DEADLINE_VARIABLE, DEFAULT_DEADLINE_S))


class Tally:
    """Counts what a push moves, from now on."""

    def __init__(self) -> None:
        self._begin = time.monotonic()
        self._bytes = 0
        self._checksums: dict[str, str] = {}

    def add(self, records: Sequence[TensorRecord]) -> None:
        """Count one bucket."""
        self._bytes += sum(record.size for record in records)
        self._checksums |= {record.name: record.checksum for record in records}

    def report(self, version: int) -> PushReport:
        """Of a push that every engine has confirmed."""
        return PushReport(
            version=version,
            bytes=self._bytes,
            seconds=time.monotonic() - self._begin,
            tensors=len(self._checksums),
            checksums=self._checksums,
        )


def drain(weights: Iterator[object]) -> None:
    """Go through the rest: every rank of the trainer takes part in making each tensor."""
    for _ in weights:
        pass
