"""POSIX shared memory by file, below /dev/shm.

`multiprocessing.shared_memory` is not used: before Python 3.13 its resource tracker unlinks segments that a process
merely opened.
"""

from __future__ import annotations

import errno
import mmap
import os
import shutil
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from vime_core.errors import ResourceError

if TYPE_CHECKING:
    import torch

FOLDER = Path("/dev/shm")


class Segment:
    """A segment of the trainer, which grows as needed and is reused by every push.

    Args:
        name: file name, `vime-<run id>-...`.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._path = FOLDER / name
        self._map: mmap.mmap | None = None

    @property
    def size(self) -> int:
        """Bytes that are there."""
        return len(self._map) if self._map is not None else 0

    def reserve(self, size: int) -> None:
        """Make it at least so large; the content stays. No view of it may be alive.

        The memory is really taken: writing to a sparse file on a full /dev/shm would end the process with SIGBUS.

        Raises:
            ResourceError: when /dev/shm has too little room.
        """
        if size <= self.size:
            return
        flags = os.O_RDWR | os.O_CREAT | (os.O_EXCL if self._map is None else 0)
        descriptor = os.open(self._path, flags, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, size)
            mapped = mmap.mmap(descriptor, size)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.ENOMEM):
                raise
            free = shutil.disk_usage(FOLDER).free
            raise ResourceError(
                f"a weight push needs {size} bytes of shared memory for {self.name} and {FOLDER} has {free} free: "
                "enlarge it (containers: --shm-size) or lower sync.bucket_mib"
            ) from error
        finally:
            os.close(descriptor)
        if self._map is not None:
            self._map.close()
        self._map = mapped

    def view(self, offset: int, size: int) -> memoryview:
        """Writable bytes; release them before the segment grows or closes."""
        return memoryview(self._map or b"")[offset : offset + size]

    def write(self, offset: int, data: torch.Tensor) -> None:
        """Copy bytes in: [size] uint8, not empty, of any device."""
        import torch

        with self.view(offset, data.numel()) as view:
            torch.frombuffer(view, dtype=torch.uint8).copy_(data)

    def close(self) -> None:
        """Unlink it; safe to call twice."""
        if self._map is not None:
            self._map.close()
            self._map = None
        self._path.unlink(missing_ok=True)


def read_segment(name: str) -> mmap.mmap:
    """Map another process's segment read-only.

    Raises:
        ValueError: when there is none, it is empty, or the file is no plain file of this user.
    """
    try:
        descriptor = os.open(FOLDER / name, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError as error:
        raise ValueError(
            f"segment {name} cannot be opened ({error.strerror}): do trainer and engine share a node?"
        ) from error
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
            raise ValueError(f"segment {name} is no plain file of this user")
        if status.st_size == 0:
            raise ValueError(f"segment {name} is empty")
        return mmap.mmap(descriptor, 0, prot=mmap.PROT_READ)
    finally:
        os.close(descriptor)
