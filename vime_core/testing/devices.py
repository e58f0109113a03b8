"""Devices for tests: shared memory as their memory, with UUIDs and enumerations as a test wants them."""

from __future__ import annotations

import mmap
import os
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

FOLDER = Path("/dev/shm")


class FakeMemory:
    """Implements `DeviceMemory` for one process.

    Every allocation is a file, so that what is never given back can be counted, see `allocations`.

    Args:
        node: what the names of all files of the invented node begin with.
        visible: UUIDs of the devices that the process sees, in its enumeration.
        device: ordinal of its own.
        ordinals_count: as on ROCm, a handle is opened only by a process that sees as many devices as the exporter's
            ordinal asks for.
        capacity: bytes of the device that one process can take.
    """

    def __init__(
        self,
        node: str,
        visible: Sequence[str],
        device: int = 0,
        *,
        ordinals_count: bool = False,
        capacity: int = 1 << 30,
    ) -> None:
        self._node = node
        self._visible = list(visible)
        self._device = device
        self._ordinals_count = ordinals_count
        self._capacity = capacity
        self._made = 0
        self._allocated: dict[Path, weakref.ref[torch.Tensor]] = {}

    @property
    def uuid(self) -> str:
        """Of its own device."""
        return self._visible[self._device]

    def allocate(self, size: int) -> torch.Tensor:
        """See `DeviceMemory.allocate`."""
        taken = sum(path.stat().st_size for path in self._allocated)
        if taken + size > self._capacity:
            raise RuntimeError(f"out of memory on {self.uuid}: {self._capacity - taken} bytes free, {size} wanted")
        self._made += 1
        path = FOLDER / f"{self._node}-{self.uuid}-{os.getpid()}-{id(self):x}-{self._made}"
        with path.open("xb+") as file:
            file.truncate(size)
            tensor = torch.frombuffer(mmap.mmap(file.fileno(), size), dtype=torch.uint8)
        self._allocated[path] = weakref.ref(tensor)
        return tensor

    def synchronize(self) -> None:
        """See `DeviceMemory.synchronize`; what is written to shared memory is there at once."""

    def export(self, memory: torch.Tensor) -> dict[str, Any]:
        """See `DeviceMemory.export`."""
        [path] = [path for path, made in self._allocated.items() if made() is memory]
        return {"device": self._device, "memory": path.name, "size": memory.numel()}

    def open(self, handle: Any) -> torch.Tensor:
        """See `DeviceMemory.open`."""
        if not isinstance(handle, dict) or set(handle) != {"device", "memory", "size"}:
            raise ValueError(f"a device handle must have the fields device, memory, size, not {handle!r}")
        if self._ordinals_count and handle["device"] >= len(self._visible):
            raise ValueError(f"invalid device ordinal {handle['device']}: {len(self._visible)} devices are visible")
        path = FOLDER / handle["memory"]
        if not handle["memory"].startswith(f"{self._node}-{self.uuid}-"):
            raise ValueError(f"invalid argument: the handle is not of memory of device {self.uuid}")
        if not path.is_file():
            raise ValueError("invalid resource handle: its memory was given back")
        with path.open("rb+") as file:
            held = os.fstat(file.fileno()).st_size
            if held < handle["size"]:
                raise ValueError(f"the memory of the handle holds {held} of {handle['size']} bytes")
            return torch.frombuffer(mmap.mmap(file.fileno(), handle["size"]), dtype=torch.uint8)

    def collect(self) -> None:
        """See `DeviceMemory.collect`."""
        for path in [path for path, made in self._allocated.items() if made() is None]:
            del self._allocated[path]
            path.unlink()


def allocations(node: str) -> list[Path]:
    """All memory of an invented node that was not given back."""
    return sorted(FOLDER.glob(f"{node}-*"))
