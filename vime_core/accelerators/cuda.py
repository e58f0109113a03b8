"""NVIDIA GPUs, and what all accelerators have in common that torch addresses as CUDA devices."""

from __future__ import annotations

import os
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from vime_core.accelerators.masks import check_numbers, read_mask
from vime_core.accelerators.threads import thread_environment, usable_cores
from vime_core.accelerators.visible import NodeDevices, Visibility, child_variables
from vime_core.errors import ResourceError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from vime_core.config.schema import AcceleratorConfig

DRIVER = Path("/proc/driver/nvidia/version")
GPUS = Path("/proc/driver/nvidia/gpus")
"""A folder a GPU; a container has those that it was given."""

MASK = "CUDA_VISIBLE_DEVICES"

CUDA_VISIBILITY = Visibility(
    masks=(MASK,),
    # A CUDA IPC handle is opened on the importer's own device, whatever the exporter calls it.
    peers=False,
    # vime decides who gets which device; Ray would overwrite the mask with its own count.
    constants={"RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES": "1"},
)


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


def cuda_devices(environment: Mapping[str, str], installed: int, name: str = "this node") -> NodeDevices:
    """The devices that a node offers.

    Args:
        environment: of the process that starts the run there.
        installed: GPUs of the node; 0 when that is not known.
        name: of the node.

    Raises:
        ResourceError: names the variable that is wrong.
    """
    mask = read_mask(environment, MASK)
    if mask is not None and installed:
        check_numbers(MASK, mask, installed, name)
    entries = mask if mask is not None else tuple(str(index) for index in range(installed))
    return NodeDevices(name, entries, {})


class CudaAccelerator:
    """Implements `Accelerator` through torch.cuda."""

    name = "cuda"
    torch_backend = "nccl"
    ray_resource = "GPU"
    can_sleep = True
    visibility: ClassVar[Visibility] = CUDA_VISIBILITY

    def __init__(self, config: AcceleratorConfig) -> None:
        self._cores = config.cores or usable_cores()

    def available(self) -> str | None:
        """Why there is no usable device, or None."""
        return probe()

    @property
    def mask_variables(self) -> tuple[str, ...]:
        """Environment variables that choose devices."""
        return self.visibility.masks

    def driver_is_loaded(self) -> bool:
        """Whether this is a node of such devices, usable or not."""
        return DRIVER.exists()

    def offered(self, environment: Mapping[str, str]) -> NodeDevices:
        """The devices that this node offers to a process with `environment`.

        Raises:
            ResourceError: names the visible-device variable that is wrong.
        """
        return cuda_devices(environment, len(list(GPUS.glob("*"))))

    def device(self, local_rank: int) -> str:
        """Ordinal within the process's visible devices."""
        return f"cuda:{local_rank}"

    def device_count(self) -> int:
        """Visible devices."""
        import torch

        return torch.cuda.device_count()

    def ray_environment(self) -> dict[str, str]:
        """Ray leaves the masks alone, and finds those that it asks for.

        Raises:
            ResourceError: names the visible-device variable that is wrong.
        """
        node = self.offered(os.environ)
        if not node.entries:
            return dict(self.visibility.constants)
        return child_variables(self.visibility, node, range(len(node.entries)))

    def child_environment(self, devices: Sequence[int], threads: int) -> dict[str, str]:
        """Thread counts and visible devices: its own first, by position among those that this node offers.

        Raises:
            ResourceError: names the visible-device variable that is wrong, or the device that is not offered.
        """
        environment = thread_environment(threads)
        if not devices:
            return environment
        node, wanted = self.offered(os.environ), max(devices) + 1
        if not node.entries:
            # Nothing is known of the node's devices: they are numbered from 0.
            node = NodeDevices(node.name, tuple(str(index) for index in range(wanted)), node.inherited)
        if len(node.entries) < wanted:
            raise ResourceError(f"a process is to have device {wanted - 1}, and {node.name} offers {len(node.entries)}")
        return environment | child_variables(self.visibility, node, devices)

    def prepare_process(self, threads: int) -> None:
        """Pin the host threads and take the first visible device."""
        import torch

        torch.set_num_threads(threads)
        torch.cuda.set_device(0)

    def memory(self) -> tuple[int, int]:
        """(free, total) bytes of the current device."""
        import torch

        return torch.cuda.mem_get_info()
