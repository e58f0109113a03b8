"""log.txt: one line an event, with the actor that it comes from."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PREFIX = "vime_"
"""Packages whose events of level INFO are kept; of others only warnings and worse."""


@contextmanager
def log_to(path: Path, actor: str) -> Iterator[None]:
    """Append the log events of this process to a file.

    Several processes may write to one file: a line of up to 8 KiB goes out in one piece.

    Args:
        path: The file.
        actor: Who this process is, e.g. `driver`, `trainer 0`.
    """
    handler = logging.FileHandler(path, encoding="utf-8")
    handler.setFormatter(_OneLine(f"%(asctime)s %(levelname)-7s {actor.replace('%', '%%')}: %(message)s (%(name)s)"))
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


class _OneLine(logging.Formatter):
    r"""Line breaks within a message become `\n`; a traceback follows on lines of its own, indented."""

    def format(self, record: logging.LogRecord) -> str:
        return super().format(record).replace("\n", "\n    ")

    def formatMessage(self, record: logging.LogRecord) -> str:
        return super().formatMessage(record).replace("\r", "\\r").replace("\n", "\\n")
