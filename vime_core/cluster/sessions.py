"""Sessions of their own for the processes of a library that offers no option for it."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_apart = False


@contextmanager
def forked_children_apart() -> Iterator[None]:
    """Children forked in the block lead sessions of their own, so no signal to this process's group reaches them.

    That holds for `os.fork`, and for `subprocess.Popen` with a `preexec_fn`: only such a child runs Python before its
    program (https://docs.python.org/3/library/os.html#os.register_at_fork).
    """
    global _apart
    _apart = True
    try:
        yield
    finally:
        _apart = False


def _leave() -> None:
    if _apart:
        os.setsid()


os.register_at_fork(after_in_child=_leave)
