"""Devices, and how weights get from one to another."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import torch

    from vime_core.types import EngineEndpoint, PushReport


class SyncStrategy(Protocol):
    """Moves weights into engines. One object a trainer rank; all methods are collective."""

    def connect(self, endpoints: Sequence[EngineEndpoint]) -> None:
        """Prepare every engine for pushes."""
        ...

    def push(self, weights: Iterable[tuple[str, torch.Tensor]], version: int) -> PushReport | None:
        """Move all weights into all (paused) engines and stamp them; the report comes from rank 0.

        Raises:
            SyncError: when any engine did not confirm; the engines are then unusable.
        """
        ...

    def close(self) -> None:
        """Release buffers; safe to call twice."""
        ...


class Accelerator(Protocol):
    """Devices of one kind on this node."""

    name: str
    torch_backend: str
    """For torch.distributed, e.g. `gloo`, `nccl`."""
    ray_resource: str
    """Ray's name for one device: `CPU` or `GPU`."""
    can_sleep: bool
    """Whether engines can release device memory."""

    def available(self) -> str | None:
        """Why there is no such device here, or None."""
        ...

    def device(self, local_rank: int) -> str:
        """torch device string."""
        ...

    def device_count(self) -> int:
        """Devices on this node; on the CPU the number of usable cores."""
        ...

    def ray_environment(self) -> dict[str, str]:
        """What Ray's own processes, and the driver before it imports Ray, need in their environment.

        Raises:
            ResourceError: names the inherited variable that is wrong.
        """
        ...

    def child_environment(self, devices: Sequence[int], threads: int) -> dict[str, str]:
        """Environment that makes a child process number these devices from 0 and use so many threads.

        Args:
            devices: positions among the devices that this node offers.
            threads: of the process.

        Raises:
            ResourceError: names the inherited variable that is wrong.
        """
        ...

    def prepare_process(self, threads: int) -> None:
        """Called in a trainer rank before torch.distributed starts: threads, device selection."""
        ...

    def memory(self) -> tuple[int, int]:
        """(free, total) bytes of device memory; host memory on the CPU."""
        ...
