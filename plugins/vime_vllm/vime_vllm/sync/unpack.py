"""Taking tensors out of shared memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from vime_vllm.sync.segment import read_segment
from vime_vllm.sync.wire import TensorRecord, check_segment_name, read_bucket, require_checksum

if TYPE_CHECKING:
    import mmap


def read_weights(segment: Any, tensors: Any, run_id: str) -> list[tuple[str, torch.Tensor]]:
    """Copies of all tensors of a bucket, each compared with its checksum.

    Args:
        segment: name of the segment, as received.
        tensors: `TensorRecord`s as JSON, as received.
        run_id: only segments `vime-<run_id>-*` are read.

    Raises:
        ValueError: when the segment is none of the run's, or a tensor is not what its record says.
    """
    check_segment_name(segment, run_id)
    with read_segment(segment) as mapped:
        return [(record.name, _read(mapped, record)) for record in read_bucket(tensors, len(mapped))]


def _read(mapped: mmap.mmap, record: TensorRecord) -> torch.Tensor:
    """A copy: the layerwise reload keeps a tensor until its layer is complete, and the segment is written anew."""
    with memoryview(mapped) as view:
        data = bytearray(view[record.offset : record.offset + record.size])
    require_checksum(record, data)
    dtype = getattr(torch, record.dtype)
    if not data:
        return torch.empty(record.shape, dtype=dtype)
    return torch.frombuffer(data, dtype=dtype).reshape(record.shape)
