"""Registration only; implementations are imported when chosen."""

from __future__ import annotations

from vime_core import hookimpl
from vime_core.config.schema import AcceleratorConfig
from vime_core.plugins.entries import AcceleratorEntry
from vime_rocm.probe import why_unavailable


@hookimpl
def vime_accelerators() -> list[AcceleratorEntry]:
    """AMD GPUs."""
    return [
        AcceleratorEntry(
            name="rocm",
            summary="AMD Instinct GPUs; torch.distributed over RCCL",
            config=AcceleratorConfig,
            factory="vime_rocm.accelerator:RocmAccelerator",
            requires=("torch",),
            probe=why_unavailable,
            doctor="vime_rocm.doctor:findings",
            priority=20,
        )
    ]
