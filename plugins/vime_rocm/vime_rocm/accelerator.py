"""AMD GPUs, which torch addresses as CUDA devices."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vime_core.accelerators.cuda import CudaAccelerator
from vime_rocm.probe import why_unavailable

if TYPE_CHECKING:
    from collections.abc import Sequence


class RocmAccelerator(CudaAccelerator):
    """Implements `Accelerator` through torch.cuda on ROCm; torch's backend `nccl` is RCCL there."""

    name = "rocm"

    def available(self) -> str | None:
        """Why there is no usable device, or None."""
        return why_unavailable()

    def child_environment(self, devices: Sequence[int], threads: int) -> dict[str, str]:
        """Visible devices and thread counts.

        HIP reads both masks, and vLLM refuses to start when they differ: setting one leaves an inherited other.
        """
        environment = super().child_environment(devices, threads)
        if "CUDA_VISIBLE_DEVICES" in environment:
            environment["HIP_VISIBLE_DEVICES"] = environment["CUDA_VISIBLE_DEVICES"]
        return environment
