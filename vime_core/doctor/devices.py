"""Checks of accelerators: which there are, their masks, their devices."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vime_core.accelerators.cuda import CudaAccelerator
from vime_core.accelerators.findings import Finding
from vime_core.errors import ResourceError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from vime_core.plugins.interfaces import Accelerator


def check_accelerator(accelerator: Accelerator, reason: str | None, environment: Mapping[str, str]) -> list[Finding]:
    """What is to be said of one accelerator.

    Args:
        accelerator: it may be unavailable.
        reason: why it cannot be used here, or None.
        environment: of a run that would be started now.
    """
    name = f"accelerator {accelerator.name}"
    if not isinstance(accelerator, CudaAccelerator):
        return [Finding(name, "ok", "available" if reason is None else f"not here: {reason}")]
    if reason is not None and not accelerator.driver_is_loaded():
        return [Finding(name, "ok", f"not here: {reason}")]
    if reason is not None:
        return [
            Finding(
                name,
                "problem",
                f"its driver is loaded, but {reason}",
                "mend that, or choose another accelerator: accelerator=cpu leaves the devices alone",
            ),
            *_masks(accelerator, environment),
        ]
    return [Finding(name, "ok", "available"), *_masks(accelerator, environment), _devices(accelerator)]


def _masks(accelerator: CudaAccelerator, environment: Mapping[str, str]) -> list[Finding]:
    """Only where one is set: without masks there is nothing to be wrong."""
    given = {name: environment[name] for name in accelerator.mask_variables if name in environment}
    if not given:
        return []
    check = f"masks of {accelerator.name}"
    try:
        node = accelerator.offered(environment)
    except ResourceError as error:
        return [Finding(check, "problem", str(error), f"unset {' '.join(given)} or mend it before vime starts")]
    told = ", ".join(f"{name}={value}" for name, value in given.items())
    return [Finding(check, "ok", f"{told}: {len(node.entries)} devices")]


def _devices(accelerator: CudaAccelerator) -> Finding:
    import torch

    found = [torch.cuda.get_device_properties(index) for index in range(accelerator.device_count())]
    version = torch.version.hip or torch.version.cuda
    told = ", ".join(f"{device.name} {device.total_memory / 2**30:.0f} GiB {device.uuid}" for device in found)
    check = f"devices of {accelerator.name}"
    if not found:
        return Finding(check, "problem", "torch sees none", "look at masks and driver: rocminfo or nvidia-smi")
    return Finding(check, "ok", f"{version}: {told}")
