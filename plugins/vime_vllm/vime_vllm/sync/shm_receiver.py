"""The engine's side of sync strategy `shm`: a weight-transfer engine that runs in every vLLM worker."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)

from vime_vllm.sync import reload
from vime_vllm.sync.segment import read_segment
from vime_vllm.sync.wire import TensorRecord, check_segment_name, checksum, read_bucket

if TYPE_CHECKING:
    import mmap


@dataclass
class ShmInit(WeightTransferInitInfo):
    """Sent once, when the trainer connects."""

    run_id: str
    """Only segments `vime-<run_id>-*` are read."""


@dataclass
class ShmUpdate(WeightTransferUpdateInfo):
    """One bucket."""

    segment: str
    tensors: list[dict[str, Any]]
    """`TensorRecord`s."""


class ShmReceiver(WeightTransferEngine[ShmInit, ShmUpdate]):
    """Reads buckets of tensors in Hugging Face names; every byte is checked before the model sees any of a bucket."""

    init_info_cls = ShmInit
    update_info_cls = ShmUpdate

    def init_transfer_engine(self, init_info: ShmInit) -> None:
        """Remember whose segments to read."""
        self._run_id = init_info.run_id

    def start_weight_update(self) -> None:
        """See `reload.begin`."""
        reload.begin(self.model)

    def receive_weights(self, update_info: ShmUpdate) -> None:
        """Copy a bucket, compare checksums, load it. That it returns is the confirmation.

        Raises:
            ValueError: when the segment is none of the run's, or a tensor is not what its record says.
        """
        check_segment_name(update_info.segment, self._run_id)
        with read_segment(update_info.segment) as mapped:
            records = read_bucket(update_info.tensors, len(mapped))
            weights = [(record.name, read_tensor(mapped, record)) for record in records]
        self.model.load_weights(weights)

    def finish_weight_update(self) -> None:
        """See `reload.finish`."""
        reload.finish(self.model, self.model_config)

    def shutdown(self) -> None:
        """Nothing is held between buckets."""


def read_tensor(mapped: mmap.mmap, record: TensorRecord) -> torch.Tensor:
    """A copy of one tensor: the layerwise reload keeps it until its layer is complete, the segment is written anew.

    Raises:
        ValueError: when the copied bytes do not have the checksum of the record.
    """
    with memoryview(mapped) as view:
        data = bytearray(view[record.offset : record.offset + record.size])
    found = checksum(data)
    if found != record.checksum:
        raise ValueError(f"{record.name}: checksum {found} of the bytes read is not {record.checksum} as sent")
    dtype = getattr(torch, record.dtype)
    if not data:
        return torch.empty(record.shape, dtype=dtype)
    return torch.frombuffer(data, dtype=dtype).reshape(record.shape)
