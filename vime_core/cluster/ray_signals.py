"""SIGTERM while Ray starts."""

from __future__ import annotations

import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def caller_handles_sigterm() -> Iterator[None]:
    """The handler of SIGTERM outlives a `ray.init` in the block, and gets the SIGTERM that came in between.

    `ray.init` sets two of its own: one that calls `sys.exit(15)`, then one that prints a C++ stack trace.
    """
    handler = signal.getsignal(signal.SIGTERM)
    try:
        yield
    except SystemExit as end:
        if end.code == signal.SIGTERM:
            signal.signal(signal.SIGTERM, handler)
            signal.raise_signal(signal.SIGTERM)
        raise
    finally:
        signal.signal(signal.SIGTERM, handler)
