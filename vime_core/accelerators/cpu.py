"""The CPU as an accelerator: one device, many cores."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vime_core.config.schema import AcceleratorConfig

THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
HIDDEN_DEVICE_VARIABLES = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")


def usable_cores() -> int:
    """Cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class CpuAccelerator:
    """Implements `Accelerator`; always available. Every process shares the one device."""

    name = "cpu"
    torch_backend = "gloo"
    ray_resource = "CPU"
    can_sleep = False

    def __init__(self, config: AcceleratorConfig) -> None:
        self._cores = config.cores or usable_cores()

    def available(self) -> str | None:
        """None: there is always a CPU."""
        return None

    def device(self, local_rank: int) -> str:
        """The same device for every rank."""
        return "cpu"

    def device_count(self) -> int:
        """Cores that the run may use."""
        return self._cores

    def child_environment(self, devices: Sequence[int], threads: int) -> dict[str, str]:
        """Thread counts; other devices are hidden so that a CPU run is one on any machine."""
        environment = dict.fromkeys(THREAD_VARIABLES, str(threads))
        environment.update(dict.fromkeys(HIDDEN_DEVICE_VARIABLES, ""))
        return environment

    def prepare_process(self, threads: int) -> None:
        """Pin the intra-op thread count: results depend on it in the last bit."""
        import torch

        torch.set_num_threads(threads)

    def memory(self) -> tuple[int, int]:
        """(available, total) bytes of host memory."""
        memory = psutil.virtual_memory()
        return memory.available, memory.total
