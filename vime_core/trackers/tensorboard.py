"""TensorBoard event files, written without torch or TensorFlow."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from vime_core.trackers.config import TensorBoardConfig

FOLDER = "tensorboard"
"""Within the run folder."""


class TensorBoardTracker:
    """Implements `vime_core.plugins.interfaces.Tracker`; every metric is a scalar of its own name."""

    def __init__(self, config: TensorBoardConfig, run_folder: Path) -> None:
        """Start a new event file."""
        self._writer = EventFileWriter(str(run_folder / FOLDER))
        self._started = False
        self._closed = False

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write one step, and bring it to the disk."""
        if not self._started:
            # Tells readers to forget what a run that was cut back to a checkpoint had written of this and later steps.
            self._add(step, session_log=SessionLog(status=SessionLog.START))
            self._started = True
        values = [Summary.Value(tag=name, simple_value=float(value)) for name, value in metrics.items()]
        self._add(step, summary=Summary(value=values))
        self._writer.flush()

    def close(self) -> None:
        """Safe to call twice."""
        if not self._closed:
            self._closed = True
            self._writer.close()

    def _add(self, step: int, *, session_log: SessionLog | None = None, summary: Summary | None = None) -> None:
        self._writer.add_event(Event(wall_time=time.time(), step=step, session_log=session_log, summary=summary))
