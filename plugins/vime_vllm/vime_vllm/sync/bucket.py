"""Packing tensors into memory that engines read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

import torch

from vime_core.errors import SyncError
from vime_vllm.sync.wire import DTYPE_BYTES, TensorRecord, checksum

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

ALIGNMENT = 64
"""Bytes; any dtype can be read in place at such an offset."""


class Writable(Protocol):
    """Memory that a bucket is packed into."""

    @property
    def size(self) -> int:
        """Bytes that are there."""
        ...

    def reserve(self, size: int) -> None:
        """Make it at least so large; the content stays."""
        ...

    def write(self, offset: int, data: torch.Tensor) -> None:
        """Copy bytes in: [size] uint8, of any device."""
        ...


Memory = TypeVar("Memory", bound=Writable)


class Bucket(Generic[Memory]):
    """Tensors in one segment.

    Args:
        segment: written from its start.
        capacity: bytes after which the bucket is full; a larger tensor has a bucket to itself.
    """

    def __init__(self, segment: Memory, capacity: int) -> None:
        self.segment = segment
        self.records: list[TensorRecord] = []
        self._capacity = capacity
        self._end = 0

    @property
    def size(self) -> int:
        """Bytes from the start of the segment to the end of the last tensor."""
        return self._end

    def has_room(self, tensor: torch.Tensor) -> bool:
        """Whether the tensor may be added."""
        return not self.records or _aligned(self._end) + tensor.nbytes <= self._capacity

    def add(self, name: str, tensor: torch.Tensor) -> None:
        """Copy a tensor into the segment.

        Raises:
            SyncError: when tensors of its dtype cannot travel.
            ResourceError: when shared memory is short.
        """
        dtype = str(tensor.dtype).removeprefix("torch.")
        if dtype not in DTYPE_BYTES:
            raise SyncError(f"{name} has dtype {dtype}, which cannot travel to an engine")
        data = tensor.detach().reshape(-1).contiguous().view(torch.uint8)
        offset, size = _aligned(self._end), data.numel()
        self._end = offset + size
        if self._end > self.segment.size or not self.segment.size:
            # At least doubled, so that a bucket that grows tensor by tensor is mapped a few times only.
            self.segment.reserve(max(self._end, min(2 * self.segment.size, self._capacity), 1))
        if size:
            self.segment.write(offset, data)
        self.records.append(
            TensorRecord(
                name=name,
                dtype=dtype,
                shape=tuple(tensor.shape),
                offset=offset,
                size=size,
                checksum=checksum(data.cpu().numpy().data),
            )
        )


def buckets(
    weights: Iterable[tuple[str, torch.Tensor]], segments: Sequence[Memory], capacity: int
) -> Iterator[Bucket[Memory]]:
    """Full buckets in the order of `weights`, in turn in each of `segments`.

    A segment is written anew when the bucket after the next is asked for.
    """
    turn = 0
    bucket = Bucket(segments[0], capacity)
    for name, tensor in weights:
        if not bucket.has_room(tensor):
            yield bucket
            turn += 1
            bucket = Bucket(segments[turn % len(segments)], capacity)
        bucket.add(name, tensor)
    if bucket.records:
        yield bucket


def _aligned(offset: int) -> int:
    return -(-offset // ALIGNMENT) * ALIGNMENT
