"""The engine's side of sync strategy `nccl`: a weight-transfer engine that runs in every vLLM worker."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)

from vime_vllm.sync import reload
from vime_vllm.sync.group_reader import GroupReader


@dataclass
class NcclInit(WeightTransferInitInfo):
    """Sent once, when the trainer connects."""

    host: str
    """Address at which the trainer's store listens."""
    port: int
    size: int
    """Ranks of the group: the trainer's, which is 0, and all workers of all engines."""
    first_rank: int
    """Of this engine's workers."""
    backend: str
    """Of the trainer's collectives."""
    timeout_s: float
    """Seconds to meet."""
    greeting: str
    """What the trainer broadcasts first, in hexadecimal digits."""


@dataclass
class NcclUpdate(WeightTransferUpdateInfo):
    """One bucket, which is broadcast while this arrives."""

    version: int
    bucket: int
    """Its number within the push."""
    size: int
    """Bytes."""
    timeout_s: float
    """Seconds to wait for them."""
    tensors: list[dict[str, Any]]
    """`TensorRecord`s."""


class NcclReceiver(WeightTransferEngine[NcclInit, NcclUpdate]):
    """Reads buckets of tensors in Hugging Face names; every byte is checked before the model sees any of a bucket."""

    init_info_cls = NcclInit
    update_info_cls = NcclUpdate

    def init_transfer_engine(self, init_info: NcclInit) -> None:
        """Join the trainer's group, see `GroupReader.join`."""
        self.shutdown()
        self._reader = GroupReader(self.device)
        self._reader.join(asdict(init_info), self.parallel_config.rank)

    def start_weight_update(self) -> None:
        """See `reload.begin`."""
        self._reader.begin()
        reload.begin(self.model)

    def receive_weights(self, update_info: NcclUpdate) -> None:
        """Receive a bucket, see `GroupReader.read`, and load it. That it returns is the confirmation."""
        self.model.load_weights(self._reader.read(**vars(update_info)))

    def finish_weight_update(self) -> None:
        """See `reload.finish`."""
        reload.finish(self.model, self.model_config)
        self._reader.finish()

    def shutdown(self) -> None:
        """Leave the group; in none when no trainer has connected."""
        if hasattr(self, "_reader"):
            self._reader.close()
