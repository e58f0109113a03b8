"""AMD GPUs, which torch addresses as CUDA devices."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vime_core.accelerators.cuda import CudaAccelerator
from vime_rocm.masks import CUDA, HIP, ROCM_VISIBILITY, ROCR, rocm_devices
from vime_rocm.probe import KFD, installed_gpus, why_unavailable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from vime_core.accelerators.visible import NodeDevices


class RocmAccelerator(CudaAccelerator):
    """Implements `Accelerator` through torch.cuda on ROCm; torch's backend `nccl` is RCCL there."""

    name = "rocm"
    visibility = ROCM_VISIBILITY

    def available(self) -> str | None:
        """Why there is no usable device, or None."""
        return why_unavailable()

    @property
    def mask_variables(self) -> tuple[str, ...]:
        """Environment variables that choose devices."""
        return HIP, CUDA, ROCR

    def driver_is_loaded(self) -> bool:
        """Whether this is a node of such devices, usable or not."""
        return KFD.exists()

    def offered(self, environment: Mapping[str, str]) -> NodeDevices:
        """The devices that this node offers to a process with `environment`.

        Raises:
            ResourceError: names the variable that is wrong, or the two that conflict.
        """
        return rocm_devices(environment, installed_gpus())
