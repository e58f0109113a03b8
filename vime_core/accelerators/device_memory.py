"""Device memory that another process reads in place, through inter-process (IPC) handles made of plain values.

`CudaMemory` is all of it that needs a device; `vime_core.testing.devices.FakeMemory` stands in for it elsewhere.
"""

from __future__ import annotations

import base64
import binascii
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch

HANDLE_FIELDS = {
    "device": int,
    "memory": bytes,
    "size": int,
    "offset": int,
    "counter": bytes,
    "counter_offset": int,
    "event": bytes,
    "wait": bool,
}
"""What torch shares of a storage (`UntypedStorage._share_cuda_`), in its order: the exporter's ordinal of the device,
the handle of the allocation, bytes of the storage, its offset in the allocation, where torch counts readers, and the
event that a reader waits for."""


class DeviceMemory(Protocol):
    """Memory of one device of this process."""

    @property
    def uuid(self) -> str:
        """The device's, the same in every process whatever its masks."""
        ...

    def allocate(self, size: int) -> torch.Tensor:
        """[size] uint8 on the device; its memory is free again once the tensor is dropped and `collect` was called.

        Raises:
            RuntimeError: when there is too little.
        """
        ...

    def synchronize(self) -> None:
        """Wait until everything written so far is there for other processes."""
        ...

    def export(self, memory: torch.Tensor) -> dict[str, Any]:
        """A handle of what `allocate` returned; JSON values.

        To be opened by one process, once: the memory stays taken until that process has closed it.

        Raises:
            RuntimeError: when the device cannot share it.
        """
        ...

    def open(self, handle: Any) -> torch.Tensor:
        """[size] uint8: the memory of another process on this process's device; dropping the tensor closes it.

        Raises:
            ValueError: when the handle is malformed, stale or of memory that cannot be reached from here.
        """
        ...

    def collect(self) -> None:
        """Give back what was dropped: own memory that no process reads any more, and mappings of others'."""
        ...


class CudaMemory:
    """Implements `DeviceMemory` through torch.cuda.

    Args:
        device: ordinal within the process's visible devices; the current one when None.
    """

    def __init__(self, device: int | None = None) -> None:
        import torch

        self.device = torch.cuda.current_device() if device is None else device

    @property
    def uuid(self) -> str:
        """As torch reports it."""
        import torch

        return str(torch.cuda.get_device_properties(self.device).uuid)

    def allocate(self, size: int) -> torch.Tensor:
        """See `DeviceMemory.allocate`."""
        import torch

        return torch.empty(size, dtype=torch.uint8, device=torch.device("cuda", self.device))

    def synchronize(self) -> None:
        """See `DeviceMemory.synchronize`."""
        import torch

        torch.cuda.synchronize(self.device)

    def export(self, memory: torch.Tensor) -> dict[str, Any]:
        """See `DeviceMemory.export`."""
        return handle_to_json(memory.untyped_storage()._share_cuda_())

    def open(self, handle: Any) -> torch.Tensor:
        """See `DeviceMemory.open`; the exporter's ordinal gives way to the importer's own."""
        import torch

        _, *fields = handle_from_json(handle)
        torch.cuda.init()
        try:
            storage = torch.UntypedStorage._new_shared_cuda(self.device, *fields)
        except RuntimeError as error:
            raise ValueError(f"the handle cannot be opened on device {self.uuid}: {_first_line(error)}") from error
        return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)

    def collect(self) -> None:
        """See `DeviceMemory.collect`; torch's cache gives back what it holds too, for the other processes."""
        import torch

        torch.cuda.ipc_collect()
        torch.cuda.empty_cache()


def handle_to_json(fields: tuple[Any, ...]) -> dict[str, Any]:
    """What torch shares of a storage as JSON values; bytes become base64."""
    return {
        name: base64.b64encode(value).decode() if isinstance(value, bytes) else value
        for name, value in zip(HANDLE_FIELDS, fields, strict=True)
    }


def handle_from_json(handle: Any) -> list[Any]:
    """Undo `handle_to_json`.

    Raises:
        ValueError: says which field is missing or none of its kind.
    """
    if not isinstance(handle, dict) or set(handle) != set(HANDLE_FIELDS):
        raise ValueError(f"a device handle must have the fields {', '.join(HANDLE_FIELDS)}, not {handle!r}")
    return [_field(name, kind, handle[name]) for name, kind in HANDLE_FIELDS.items()]


def _field(name: str, kind: type, value: Any) -> Any:
    if kind is bytes and isinstance(value, str):
        try:
            return base64.b64decode(value, validate=True)
        except binascii.Error as error:
            raise ValueError(f"{name} of a device handle is no base64: {value!r}") from error
    if type(value) is not kind or (isinstance(value, int) and value < 0):
        raise ValueError(f"{name} of a device handle must be {kind.__name__}, not {value!r}")
    return value


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)
