"""What Megatron-Core 0.16.1 needs, above all where there is no CUDA device or no fused Adam.

Megatron is written for CUDA: it allocates on `device="cuda"`, asks for the current device and compares type names
with `torch.cuda.FloatTensor`. Each guard here mends one such assumption, says why, and names the lines it is for; a
test compares those lines with the installed Megatron. Guards are installed in trainer processes only, and only
where they are needed: with a CUDA or ROCm device nothing of Megatron's device handling is touched.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import torch

from vime_megatron.compat.adam import ADAM_GUARDS
from vime_megatron.compat.buckets import BUCKET_GUARDS
from vime_megatron.compat.cuda import CUDA_GUARDS, HOST
from vime_megatron.compat.experts import EXPERT_GUARDS
from vime_megatron.compat.parallel import PARALLEL_GUARDS

if TYPE_CHECKING:
    from vime_megatron.compat.guard import Guard

__all__ = [
    "ADAM_GUARDS",
    "BUCKET_GUARDS",
    "CUDA_GUARDS",
    "EXPERT_GUARDS",
    "GUARDS",
    "HOST",
    "PARALLEL_GUARDS",
    "device_random_states",
    "has_device",
    "install",
    "needed",
    "overlap_communication",
    "restore_device_random_states",
]

GUARDS = (*CUDA_GUARDS, *PARALLEL_GUARDS, *EXPERT_GUARDS, *ADAM_GUARDS, *BUCKET_GUARDS)
"""All guards."""


def has_device() -> bool:
    """Whether torch sees a CUDA or ROCm device."""
    return torch.cuda.is_available()


def device_random_states() -> list[torch.Tensor]:
    """State of the generator of every visible device."""
    return torch.cuda.get_rng_state_all() if has_device() else []


def restore_device_random_states(states: list[torch.Tensor]) -> None:
    """Undo `device_random_states`."""
    if states:
        torch.cuda.set_rng_state_all(states)


def needed() -> list[Guard]:
    """The guards that this machine and this installation need."""
    return [guard for guard in GUARDS if guard.needed()]


def overlap_communication() -> None:
    """Let tensor-parallel layers issue their communication before the matrix product that hides it.

    Megatron asks for one hardware queue a device, which keeps the order; it warns where that is not set.
    """
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "1")


def install() -> list[str]:
    """Install the needed guards in this process; safe to call again.

    Returns:
        Names of the guards in place.
    """
    guards = needed()
    for guard in guards:
        guard.install()
    return [guard.name for guard in guards]
