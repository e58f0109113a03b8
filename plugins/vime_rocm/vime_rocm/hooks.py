"""Registration only; implementations are imported when chosen."""

from __future__ import annotations

from vime_core import hookimpl
from vime_core.config.schema import AcceleratorConfig
from vime_core.plugins.entries import AcceleratorEntry, SyncStrategyEntry
from vime_rocm.config import RocmIpcConfig
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


@hookimpl
def vime_sync_strategies() -> list[SyncStrategyEntry]:
    """The sync strategy `rocm_ipc`."""
    return [
        SyncStrategyEntry(
            name="rocm_ipc",
            summary="Weights through memory of AMD GPUs that trainer and engines share",
            config=RocmIpcConfig,
            factory="vime_rocm.sync:RocmIpcSync",
            requires=("vllm",),
            rollout_backends=frozenset({"vllm"}),
            accelerators=frozenset({"rocm"}),
            placements=frozenset({"colocated"}),
            trainer_buffers=2,
            engine_buffers=1,
            priority=10,
        )
    ]
