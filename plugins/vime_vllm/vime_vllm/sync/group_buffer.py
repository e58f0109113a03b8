"""Memory that a bucket is packed into before it is broadcast, and that one is received into."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vime_core.errors import SyncError

if TYPE_CHECKING:
    import torch


class GroupBuffer:
    """Bytes on one device; grows as needed and is used again by every push.

    Args:
        device: where.
    """

    def __init__(self, device: torch.device) -> None:
        import torch

        self._tensor = torch.empty(0, dtype=torch.uint8, device=device)

    @property
    def size(self) -> int:
        """Bytes that are there."""
        return self._tensor.numel()

    def reserve(self, size: int) -> None:
        """Make it at least so large; the content stays.

        Raises:
            SyncError: when memory is short.
        """
        if size <= self.size:
            return
        try:
            larger = self._tensor.new_empty(size)
        except RuntimeError as error:
            told = " ".join(str(error).split())
            raise SyncError(f"weight push: no room for {size} bytes: {told}; lower sync.bucket_mib") from error
        larger[: self.size].copy_(self._tensor)
        self._tensor = larger

    def write(self, offset: int, data: torch.Tensor) -> None:
        """Copy bytes of any device in."""
        self._tensor[offset : offset + data.numel()].copy_(data)

    def first(self, size: int) -> torch.Tensor:
        """[size] uint8: a view of the first bytes."""
        return self._tensor[:size]
