"""Device memory on ROCm, which torch addresses as CUDA's."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from vime_core.accelerators.device_memory import CudaMemory, handle_from_json
from vime_rocm.doctor import LEGACY_IPC
from vime_rocm.masks import HIP

if TYPE_CHECKING:
    import torch


class RocmMemory(CudaMemory):
    """Implements `DeviceMemory` through torch.cuda on ROCm, and tells what is known to break its handles there."""

    def export(self, memory: torch.Tensor) -> dict[str, Any]:
        """See `DeviceMemory.export`."""
        try:
            return super().export(memory)
        except RuntimeError as error:
            if os.environ.get(LEGACY_IPC) == "1":
                raise RuntimeError(f"{error} (unset {LEGACY_IPC}: some ROCm versions share nothing with it)") from error
            raise

    def open(self, handle: Any) -> torch.Tensor:
        """See `DeviceMemory.open`."""
        import torch

        ordinal, *_ = handle_from_json(handle)
        require_ordinal(ordinal, torch.cuda.device_count())
        return super().open(handle)


def require_ordinal(ordinal: int, visible: int) -> None:
    """Check that a handle's ordinal exists here: HIP resolves the exporter's in the importer's enumeration.

    Raises:
        ValueError: says what to change.
    """
    if ordinal >= visible:
        raise ValueError(
            f"the handle is of device {ordinal} in the trainer's enumeration, and this process sees {visible}: let "
            f"{HIP} of the engine list its own devices first and then the others of the node"
        )
