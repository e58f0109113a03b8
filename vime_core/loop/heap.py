"""How this process gets memory from the system."""

from __future__ import annotations

import ctypes

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
