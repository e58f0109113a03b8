"""How this process gets memory from the system, and looks for garbage."""

from __future__ import annotations

import ctypes
import gc
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

M_MMAP_THRESHOLD = -3
"""From glibc's malloc.h."""

LARGE_BYTES = 128 << 10
"""glibc's own threshold at the start of a process."""


def return_freed_memory() -> None:
    """Have large blocks go back to the system when they are freed; for the whole process, from now on.

    glibc maps a large block by itself, and unmaps it when it is freed. But each one freed raises the size that counts
    as large to its own, up to 32 MiB: from then on tensors lie in the heap, which shrinks at its end only. Setting the
    size keeps it (mallopt(3)). Where the C library has no such call, nothing changes.
    """
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is not None:
        set_option(M_MMAP_THRESHOLD, LARGE_BYTES)


@contextmanager
def heap_left_alone() -> Iterator[None]:
    """Exempt what this process holds now from the search for garbage; for all that lives as long as a run.

    The modules of torch and Ray alone are some hundred thousand objects, and each full search visits all of them. What
    is still exempt when the interpreter ends is never freed, which some extension modules complain of.
    """
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
