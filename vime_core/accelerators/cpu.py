"""The CPU as an accelerator: one device, many cores."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psutil

from vime_core.accelerators.threads import thread_environment, usable_cores

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vime_core.config.schema import AcceleratorConfig

NO_DEVICES = {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": ""}
"""Hides other accelerators, so that a CPU run is one on any machine."""


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

    def ray_environment(self) -> dict[str, str]:
        """Nothing: Ray counts cores by itself."""
        return {}

    def child_environment(self, devices: Sequence[int], threads: int) -> dict[str, str]:
        """Thread counts, and no other device."""
        return thread_environment(threads) | NO_DEVICES

    def prepare_process(self, threads: int) -> None:
        """Pin the intra-op thread count: results depend on it in the last bit."""
        import torch

        torch.set_num_threads(threads)

    def memory(self) -> tuple[int, int]:
        """(available, total) bytes of host memory."""
        memory = psutil.virtual_memory()
        return memory.available, memory.total
