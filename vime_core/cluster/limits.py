"""Limits of the operating system that large runs reach."""

from __future__ import annotations

import resource

OPEN_FILES = 1_048_576
"""Wanted by large runs: every engine, rank and connection holds some, and Ray many."""
UNLIMITED = resource.RLIM_INFINITY


def raise_open_files(wanted: int = OPEN_FILES) -> tuple[int, int]:
    """Raise this process's limit of open files, which children inherit, as far as the hard limit allows.

    Returns:
        The limit before and now.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    reachable = wanted if hard == UNLIMITED else min(wanted, hard)
    if soft == UNLIMITED or soft >= reachable:
        return soft, soft
    resource.setrlimit(resource.RLIMIT_NOFILE, (reachable, hard))
    return soft, reachable
