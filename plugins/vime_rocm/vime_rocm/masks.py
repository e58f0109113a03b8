"""The visible-device variables of ROCm: which there are, how they fit together, and what children get.

Three layers read them. ROCr masks with `ROCR_VISIBLE_DEVICES`, in the kernel's enumeration. HIP, above it, numbers
what ROCr left from 0 and masks that with `HIP_VISIBLE_DEVICES` or `CUDA_VISIBLE_DEVICES`. vLLM (0.32.0,
platforms/rocm.py:138) raises where the last two differ; Ray (2.60, _private/accelerators/amd_gpu.py:42) raises where
ROCr's is set without HIP's, and writes HIP's alone unless it is told not to.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vime_core.accelerators.masks import check_numbers, read_mask
from vime_core.accelerators.visible import NodeDevices, Visibility
from vime_core.errors import ResourceError

if TYPE_CHECKING:
    from collections.abc import Mapping

HIP, CUDA, ROCR = "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"

ROCM_VISIBILITY = Visibility(
    masks=(HIP, CUDA),
    peers=True,
    constants={f"RAY_EXPERIMENTAL_NOSET_{variable}": "1" for variable in (HIP, CUDA, ROCR)},
)


def rocm_devices(environment: Mapping[str, str], installed: int, name: str = "this node") -> NodeDevices:
    """The devices that a node offers, in HIP's enumeration.

    Args:
        environment: of the process that starts the run there.
        installed: GPUs of the node in the kernel's enumeration; 0 when that is not known.
        name: of the node.

    Raises:
        ResourceError: names the variable that is wrong, or the two that conflict.
    """
    low = read_mask(environment, ROCR)
    hip, cuda = (read_mask(environment, variable, identifiers=False) for variable in (HIP, CUDA))
    if hip is not None and cuda is not None and hip != cuda:
        raise ResourceError(
            f"{HIP}={environment[HIP]} and {CUDA}={environment[CUDA]} differ: HIP reads both and vLLM refuses to "
            f"start; unset {CUDA}, or set both alike"
        )
    if low is not None and installed:
        check_numbers(ROCR, low, installed, name)
    count = len(low) if low is not None else installed
    mask, variable = (hip, HIP) if hip is not None else (cuda, CUDA)
    if mask is not None and count:
        owner = f"{ROCR}={environment[ROCR]}, which HIP numbers anew," if low is not None else name
        check_numbers(variable, mask, count, owner)
    entries = mask if mask is not None else tuple(str(index) for index in range(count))
    return NodeDevices(name, entries, {ROCR: environment[ROCR]} if low is not None else {})
