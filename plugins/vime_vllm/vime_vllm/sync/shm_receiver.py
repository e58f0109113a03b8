"""The engine's side of sync strategy `shm`: a weight-transfer engine that runs in every vLLM worker."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)

from vime_vllm.sync import reload
from vime_vllm.sync.unpack import read_weights


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
        """Read a bucket, see `read_weights`, and load it. That it returns is the confirmation."""
        self.model.load_weights(read_weights(update_info.segment, update_info.tensors, self._run_id))

    def finish_weight_update(self) -> None:
        """See `reload.finish`."""
        reload.finish(self.model, self.model_config)

    def shutdown(self) -> None:
        """Nothing is held between buckets."""
