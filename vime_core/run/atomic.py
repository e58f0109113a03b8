"""Files that are on disk whole under their name, or not at all."""

from __future__ import annotations

import errno
import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from vime_core.errors import RunFolderError

if TYPE_CHECKING:
    from collections.abc import Iterator

PARTIAL = ".partial"
"""Ending of what is being written; such names start with a dot."""


def aside(path: Path) -> Path:
    """Where something is written before it is renamed to `path`; in the same folder, so that the rename is atomic."""
    return path.with_name(f".{path.name}{PARTIAL}")


def is_partial(path: Path) -> bool:
    """Whether this is what a process left that died while it wrote."""
    return path.name.startswith(".") and path.name.endswith(PARTIAL)


@contextmanager
def write_aside(path: Path) -> Iterator[Path]:
    """Give a path to write to; when the block ends without an exception, it is synced and renamed to `path`.

    Raises:
        RunFolderError: when it cannot be written, e.g. because the disk is full; `path` is then as it was.
    """
    partial = aside(path)
    try:
        yield partial
        sync(partial)
        os.replace(partial, path)
        sync(path.parent)
    except BaseException as error:
        partial.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise cannot_write(path, error) from error
        raise


def cannot_write(path: Path, error: OSError) -> RunFolderError:
    """What to tell when the disk is full, or the place cannot be written to."""
    full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    remedy = "make room, then go on from the last checkpoint (resume.run)" if full else "choose another place"
    return RunFolderError(f"cannot write {path}: {error.strerror or error}; {remedy}")


def write_text(path: Path, text: str) -> None:
    """Write a small file whole."""
    with write_aside(path) as partial:
        partial.write_text(text, encoding="utf-8")


def sync(path: Path) -> None:
    """fsync a file or a folder."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_tree(folder: Path) -> None:
    """fsync all files and folders in a folder, and the folder itself."""
    for root, _, files in os.walk(folder, topdown=False):
        for name in files:
            sync(Path(root, name))
        sync(Path(root))
