"""NVIDIA GPUs."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from vime_core.accelerators.cpu import THREAD_VARIABLES, usable_cores

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vime_core.config.schema import AcceleratorConfig

DRIVER = Path("/proc/driver/nvidia/version")


def probe(driver: Path = DRIVER) -> str | None:
    """Why there is no usable CUDA device here, or None; imports no torch."""
    if not driver.exists():
        return "no NVIDIA driver is loaded"
    try:
        version = metadata.version("torch")
    except metadata.PackageNotFoundError:
        return "torch is not installed"
    if "+cpu" in version or "+rocm" in version:
        return f"torch {version} is not a CUDA build"
    return None


class CudaAccelerator:
    """Implements `Accelerator` through torch.cuda."""

    name = "cuda"
    torch_backend = "nccl"
    ray_resource = "GPU"
    can_sleep = True

    def __init__(self, config: AcceleratorConfig) -> None:
        self._cores = config.cores or usable_cores()

    def available(self) -> str | None:
        """Why there is no usable device, or None."""
        return probe()

    def device(self, local_rank: int) -> str:
        """Ordinal within the process's visible devices."""
        return f"cuda:{local_rank}"

    def device_count(self) -> int:
        """Visible devices."""
        import torch

        return torch.cuda.device_count()

    def child_environment(self, devices: Sequence[int], threads: int) -> dict[str, str]:
        """Visible devices and thread counts."""
        environment = dict.fromkeys(THREAD_VARIABLES, str(threads))
        if devices:
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(str(device) for device in devices)
        return environment

    def prepare_process(self, threads: int) -> None:
        """Pin the host threads and take the first visible device."""
        import torch

        torch.set_num_threads(threads)
        torch.cuda.set_device(0)

    def memory(self) -> tuple[int, int]:
        """(free, total) bytes of the current device."""
        import torch

        return torch.cuda.mem_get_info()
