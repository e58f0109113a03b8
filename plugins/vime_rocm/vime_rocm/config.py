"""Settings of the components for ROCm."""

from __future__ import annotations

from dataclasses import dataclass

from vime_vllm.config import IpcConfig


@dataclass(kw_only=True)
class RocmIpcConfig(IpcConfig):
    """Weights through memory of AMD GPUs."""

    name: str = "rocm_ipc"
