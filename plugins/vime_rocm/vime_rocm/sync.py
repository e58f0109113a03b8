"""Sync strategy `rocm_ipc`: `ipc` with device memory of ROCm."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vime_rocm.memory import RocmMemory
from vime_vllm.sync.ipc import IpcSync

if TYPE_CHECKING:
    from collections.abc import Callable

    from vime_core.accelerators.device_memory import DeviceMemory
    from vime_rocm.config import RocmIpcConfig


class RocmIpcSync(IpcSync):
    """Implements `SyncStrategy`, see `IpcSync`."""

    def __init__(
        self, config: RocmIpcConfig, rank: int, world_size: int, memory: Callable[[], DeviceMemory] = RocmMemory
    ) -> None:
        super().__init__(config, rank, world_size, memory)
