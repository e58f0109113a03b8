"""The engine worker's side of pushes through device memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vime_vllm.sync.wire import TensorRecord, read_bucket, require_checksum

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from vime_core.accelerators.device_memory import DeviceMemory


class DeviceReader:
    """Opens the buffers of the trainer rank on the worker's device, and copies tensors out of them.

    A buffer stays open until its handle changes, for a handle may be opened once only.
    """

    def __init__(self, memory: DeviceMemory) -> None:
        self._memory = memory
        self._opened: dict[int, tuple[Any, torch.Tensor]] = {}

    def require_device(self, devices: Sequence[str]) -> None:
        """Check that a trainer rank is on the worker's device.

        Raises:
            ValueError: names the device and those of the ranks.
        """
        if self._memory.uuid not in devices:
            raise ValueError(
                f"no trainer rank is on device {self._memory.uuid} of this engine; they are on {', '.join(devices)}"
            )

    def read(self, buffer: Any, handles: Any, tensors: Any) -> list[tuple[str, torch.Tensor]]:
        """Copies of all tensors of a bucket, each compared with its checksum.

        Args:
            buffer: number of the buffer, as received.
            handles: device UUID to the handle of that device's buffer, as received.
            tensors: `TensorRecord`s as JSON, as received.

        Raises:
            ValueError: when there is no handle for this device, it cannot be opened, or a tensor is not what its
                record says.
        """
        if type(buffer) is not int or not isinstance(handles, dict):
            raise ValueError(f"a bucket needs a number and the handles of its buffer, not {buffer!r} and {handles!r}")
        self.require_device(list(handles))
        memory = self._open(buffer, handles[self._memory.uuid])
        return [(record.name, _copy(memory, record)) for record in read_bucket(tensors, memory.numel())]

    def close(self) -> None:
        """Close all buffers; safe to call twice."""
        self._opened.clear()
        self._memory.collect()

    def _open(self, buffer: int, handle: Any) -> torch.Tensor:
        if buffer in self._opened and self._opened[buffer][0] == handle:
            return self._opened[buffer][1]
        if self._opened.pop(buffer, None) is not None:
            self._memory.collect()
        opened = self._memory.open(handle)
        self._opened[buffer] = (handle, opened)
        return opened


def _copy(memory: torch.Tensor, record: TensorRecord) -> torch.Tensor:
    """The layerwise reload keeps a tensor until its layer is complete, and the buffer is written anew."""
    import torch

    data = memory[record.offset : record.offset + record.size].clone()
    require_checksum(record, data.cpu().numpy().data)
    return data.view(getattr(torch, record.dtype)).reshape(record.shape)
