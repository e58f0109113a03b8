"""The engine's side of sync strategy `rocm_ipc`."""

from __future__ import annotations

from vime_rocm.memory import RocmMemory
from vime_vllm.sync.ipc_receiver import IpcReceiver


class RocmIpcReceiver(IpcReceiver):
    """See `IpcReceiver`."""

    memory = RocmMemory
