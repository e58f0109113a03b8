"""log.txt: one line an event, with time, level and the actor that it is about."""

from __future__ import annotations

import logging
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PREFIX = "vime_"
"""Packages whose events of level INFO are kept; of others only warnings and worse."""

FORMAT = "%(asctime)s %(levelname)-7s %(actor)s: %(message)s (%(name)s)"


@contextmanager
def log_to(path: Path, actor: str) -> Iterator[None]:
    """Append the log events of this process to a file.

    Several processes may write to one file: a line of up to 8 KiB goes out in one piece. An event about another part
    of the run, which this process only looks after, names that part: `log.info(..., extra={"actor": "router"})`.

    Args:
        path: The file.
        actor: Who this process is, e.g. `driver`, `trainer rank 0`.
    """
    handler = _File(path)
    handler.setFormatter(_OneLine(FORMAT, defaults={"actor": actor}))
    handler.addFilter(lambda record: record.levelno >= logging.WARNING or record.name.startswith(PREFIX))
    root = logging.getLogger()
    level = root.level
    root.addHandler(handler)
    root.setLevel(min(level, logging.INFO))
    try:
        yield
    finally:
        root.setLevel(level)
        root.removeHandler(handler)
        handler.close()


class _File(logging.Handler):
    """Each event is one write, so that lines of several processes do not mix.

    What cannot be written is told once, in one line: the run has its own ways to end on a full disk.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path
        self._file = path.open("ab", buffering=0)
        self._told = False

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._file.write(f"{self.format(record)}\n".encode("utf-8", "replace"))
        except Exception:  # a handler may raise nothing
            self.handleError(record)

    def handleError(self, record: logging.LogRecord) -> None:
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            super().handleError(record)
        elif not self._told:
            self._told = True
            print(f"warning: {self._path} cannot be written: {error.strerror}", file=sys.stderr)  # noqa: T201

    def close(self) -> None:
        self._file.close()
        super().close()


class _OneLine(logging.Formatter):
    r"""Line breaks within a message become `\n`; a traceback follows on lines of its own, indented."""

    def format(self, record: logging.LogRecord) -> str:
        return super().format(record).replace("\n", "\n    ")

    def formatMessage(self, record: logging.LogRecord) -> str:
        return super().formatMessage(record).replace("\r", "\\r").replace("\n", "\\n")
