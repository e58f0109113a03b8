"""Memory of the trainer's device that an engine on the same device reads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vime_core.errors import SyncError

if TYPE_CHECKING:
    import torch

    from vime_core.accelerators.device_memory import DeviceMemory


class DeviceBuffer:
    """A buffer that grows as needed and is reused by every push, with one handle until it grows again.

    A rank that lacks memory must not stop in the middle of a bucket, while the others go on making tensors with it:
    what failed is remembered, and told by `handle`.
    """

    def __init__(self, memory: DeviceMemory) -> None:
        self._memory = memory
        self._tensor: torch.Tensor | None = None
        self._handle: dict[str, Any] | None = None
        self._fault: Exception | None = None

    @property
    def size(self) -> int:
        """Bytes that are there."""
        return 0 if self._tensor is None else self._tensor.numel()

    def reserve(self, size: int) -> None:
        """Make it at least so large; the content stays."""
        if size <= self.size or self._fault is not None:
            return
        try:
            larger = self._memory.allocate(size)
            if self._tensor is not None:
                larger[: self.size].copy_(self._tensor)
        except RuntimeError as error:
            self._fault = error
            return
        self._tensor, self._handle = larger, None

    def write(self, offset: int, data: torch.Tensor) -> None:
        """Copy bytes of any device in."""
        if self._fault is None and self._tensor is not None:
            self._tensor[offset : offset + data.numel()].copy_(data)

    def handle(self) -> dict[str, Any]:
        """What an engine opens, as `DeviceMemory.export`; all that was written is there.

        Raises:
            SyncError: when memory was short, or the device cannot share it.
        """
        try:
            if self._fault is not None:
                raise self._fault
            if self._tensor is None:
                self._tensor = self._memory.allocate(1)
            self._memory.synchronize()
            if self._handle is None:
                self._handle = self._memory.export(self._tensor)
        except RuntimeError as error:
            told = " ".join(str(error).split())
            raise SyncError(f"weight push: device {self._memory.uuid}: {told}; lower sync.bucket_mib") from error
        return self._handle

    def close(self) -> None:
        """Drop the memory; safe to call twice."""
        self._tensor = self._handle = self._fault = None
