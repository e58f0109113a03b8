"""The engine's side of sync strategy `ipc`: a weight-transfer engine that runs in every vLLM worker."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)

from vime_core.accelerators.device_memory import CudaMemory
from vime_vllm.sync import reload
from vime_vllm.sync.device_reader import DeviceReader

if TYPE_CHECKING:
    from collections.abc import Callable

    from vime_core.accelerators.device_memory import DeviceMemory


@dataclass
class IpcInit(WeightTransferInitInfo):
    """Sent once, when the trainer connects."""

    devices: list[str]
    """UUIDs of the devices of all trainer ranks."""


@dataclass
class IpcUpdate(WeightTransferUpdateInfo):
    """One bucket."""

    buffer: int
    """Which of the trainer's buffers it is in."""
    handles: dict[str, Any]
    """Device UUID to the handle of that device's buffer, see `DeviceMemory.export`."""
    tensors: list[dict[str, Any]]
    """`TensorRecord`s."""


class IpcReceiver(WeightTransferEngine[IpcInit, IpcUpdate]):
    """Reads buckets of tensors in Hugging Face names; every byte is checked before the model sees any of a bucket."""

    init_info_cls = IpcInit
    update_info_cls = IpcUpdate
    memory: ClassVar[Callable[[int | None], DeviceMemory]] = CudaMemory

    def init_transfer_engine(self, init_info: IpcInit) -> None:
        """Make sure that a trainer rank is on the worker's device."""
        self._reader = DeviceReader(type(self).memory(self.device.index))
        self._reader.require_device(init_info.devices)

    def start_weight_update(self) -> None:
        """See `reload.begin`."""
        reload.begin(self.model)

    def receive_weights(self, update_info: IpcUpdate) -> None:
        """Read a bucket, see `DeviceReader.read`, and load it. That it returns is the confirmation."""
        self.model.load_weights(self._reader.read(update_info.buffer, update_info.handles, update_info.tensors))

    def finish_weight_update(self) -> None:
        """See `reload.finish`."""
        reload.finish(self.model, self.model_config)

    def shutdown(self) -> None:
        """Close the trainer's buffers; none are open when no trainer has connected."""
        if hasattr(self, "_reader"):
            self._reader.close()
